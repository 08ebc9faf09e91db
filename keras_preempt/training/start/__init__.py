"""The workers agree on how a fit begins, and on the checkpoint that it continues from."""
