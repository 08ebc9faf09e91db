"""The newest checkpoint is fetched into the system's memory while the model is still being traced.

Tracing takes seconds of the processor, reading takes as long of the disk. Nothing is decided here: the workers agree on
a checkpoint, read and verify it later, at whatever speed the system then has it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from keras_preempt.checkpoint.assembly import memory_limit
from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.finding import newest_first
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.process.threads import started

_PATIENCE = 5.0  # Seconds for one file system call that is under way.


@contextlib.contextmanager
def reading_ahead(store: Store) -> Iterator[None]:
    """Fetches the newest checkpoint of a directory while the block runs, in a thread that ends with it.

    A store that is shared by network is left alone: what one worker fetches there, the others have to wait for.
    """
    if store.shared_by_network:
        yield
        return
    over = threading.Event()
    thread = started(_fetch, "keras_preempt-ahead", store, over)
    try:
        yield
    finally:
        over.set()
        if thread is not None:
            thread.join(_PATIENCE)


def _fetch(store: Store, over: threading.Event) -> None:
    with contextlib.suppress(CheckpointError):  # Whoever reads it will meet the same, and say so.
        newest = next((info for info in newest_first(store) if info.manifest is not None), None)
        files = [] if newest is None else store.list(newest.directory)
        if sum(file.size for file in files) > memory_limit() / 2:
            return  # It would push out what other processes need, or itself.
        for file in files:
            if over.is_set():
                return
            store.read_ahead(file.name)
