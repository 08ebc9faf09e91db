"""The torch backend, and what is known of Keras on torch."""
