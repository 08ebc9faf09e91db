"""The TensorFlow backend, and the repairs of Keras on it."""
