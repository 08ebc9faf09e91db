"""What happened in a run: every start of every worker, and where each second of it went. Needs no TensorFlow."""
