"""A fit or a loop from boundary to boundary: notices, rounds, errors."""
