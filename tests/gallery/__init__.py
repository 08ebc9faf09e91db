"""Training scripts as people write them with Keras, each drilled as it is against what is promised for it.

The scripts are in the folders that Keras' own examples are in. They are no modules: each is run by itself, in a
folder of its own. `catalogue` says what is expected of each, `drilled` runs it, `records` keeps what was seen, from
which docs/gallery_table.py writes docs/gallery.md. ``python -m tests.gallery`` drills all of them, or those named.
"""
