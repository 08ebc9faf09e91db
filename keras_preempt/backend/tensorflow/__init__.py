"""TensorFlow behind the seam, and the repairs of Keras on TensorFlow."""
