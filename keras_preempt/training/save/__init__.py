"""What a fit consists of, when it is saved, how, and how it is resumed."""
