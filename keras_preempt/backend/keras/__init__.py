"""Private names of Keras: the running fit, its input, and the step that it traces."""
