"""The internals of Keras that are the same on every backend: the running fit, its input, private names."""
