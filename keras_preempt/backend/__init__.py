"""All that knows the insides of Keras and of its backends."""
