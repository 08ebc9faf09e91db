"""What is known of the insides of Keras, whatever backend it runs on: the running fit, its input, private names."""
