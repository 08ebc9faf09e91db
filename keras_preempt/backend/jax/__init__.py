"""All that knows JAX, and Keras on JAX."""
