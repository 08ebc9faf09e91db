"""Training scripts as people write them with Keras: each is drilled as it is, and held to what is promised for it.

The scripts are in the folders that Keras' own examples are in. They are not modules: each runs by itself, in a folder
of its own. `catalogue` says what is expected of each; `drilled` runs it and keeps the result in verdicts.json, from
which docs/gallery_table.py writes docs/gallery.md. ``python -m tests.gallery`` drills all of them, or those named.
"""
