"""The newest checkpoint is fetched while the model is still being traced.

It comes into the system's memory, or from a bucket into the staging directory. Tracing takes seconds of the processor,
reading as long of the disk or the network. Nothing is decided here: the workers agree on
a checkpoint, read and verify it later, at whatever speed the system then has it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import partial

from keras_preempt.checkpoint.assembly import memory_limit
from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.finding import newest_first
from keras_preempt.checkpoint.storage.parallel import in_parallel
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.process.threads import started

_PATIENCE = 5.0  # Seconds for one file system call that is under way.


@contextlib.contextmanager
def reading_ahead(store: Store, members: int = 1) -> Iterator[None]:
    """Fetches the newest checkpoint of a directory while the block runs, in a thread that ends with it.

    A store that is shared by network is left alone by several workers: what one fetches there, others have to wait for,
    and in a bucket each will read its share alone.
    """
    if store.shared_by_network and members > 1:
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
        store.end_read_ahead()


def _fetch(store: Store, over: threading.Event) -> None:
    with contextlib.suppress(CheckpointError):  # Whoever reads it will meet the same, and say so.
        newest = next((info for info in newest_first(store) if info.manifest is not None), None)
        files = [] if newest is None else store.list(newest.directory)
        size = sum(file.size for file in files)
        if size > memory_limit() / 2:
            return  # It would push out what other processes need, or itself.
        if not store.is_local:
            store.check_space(2 * size)

        def fetch(name: str) -> None:
            if not over.is_set():
                store.read_ahead(name)

        in_parallel(store, [partial(fetch, file.name) for file in files], 0 if store.is_local else size)
