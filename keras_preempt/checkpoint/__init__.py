"""Checkpoints on storage: what a complete one is, how it is written, committed, read and thrown away.

Nothing here knows TensorFlow or Keras: tensors are NumPy arrays, everything else is JSON. Nothing but
`local_store` knows a file system: the rest speaks to a `store.Store`.
"""
