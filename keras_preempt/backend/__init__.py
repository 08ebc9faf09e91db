"""Everything that knows the internals of Keras, TensorFlow, JAX and torch."""
