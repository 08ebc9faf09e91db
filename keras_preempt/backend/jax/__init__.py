"""The JAX backend, and what is known of Keras on JAX."""
