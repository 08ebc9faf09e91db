"""Checkpoints on storage: their format, and how they are written, committed, read and removed.

Nothing here knows TensorFlow or Keras: tensors are NumPy arrays, everything else is JSON. Only `storage` knows file
systems and buckets: the rest uses a `storage.store.Store`.
"""
