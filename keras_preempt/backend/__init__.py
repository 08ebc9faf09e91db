"""Everything that knows the internals of Keras, TensorFlow and JAX."""
