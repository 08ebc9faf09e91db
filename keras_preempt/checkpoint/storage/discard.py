"""Takes away what a worker has written of a save that failed: the next one may need the room."""

from __future__ import annotations

import contextlib

from keras_preempt.checkpoint.errors import NotFound
from keras_preempt.checkpoint.layout import MANIFEST, part_file
from keras_preempt.checkpoint.storage.store import Store


def discard(store: Store, directory: str, member: int) -> bool:
    """Removes the files of one worker from an attempt that is not committed.

    Its part list goes first, without which nobody commits the attempt any more. Should somebody do that in this very
    moment, then he finds the list gone afterwards, and takes his manifest back.

    Args:
        store: the run's directory.
        directory: the attempt's folder.
        member: the worker.

    Returns:
        Whether they are gone; they stay if the attempt was committed.

    Raises:
        StoreUnavailable: the storage failed. What is left is removed by the next start.
    """
    names = store.children(directory)
    if MANIFEST in names:
        return False
    part = part_file(member)
    own = [name for name in names if name.startswith(part.partition(".")[0] + ".")]
    for name in sorted(own, key=lambda name: name != part):
        with contextlib.suppress(NotFound):
            store.delete(f"{directory}/{name}")
    return True
