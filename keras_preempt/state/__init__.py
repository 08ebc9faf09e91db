"""What training consists of, captured and restored: variables, input position, randomness, callbacks."""
