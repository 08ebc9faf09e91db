"""Whether a directory that somebody names is that of a run, and if not, what it is instead. Reads, never writes."""

from __future__ import annotations

import os
from typing import Any

from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpoint,
    ForeignDirectory,
    NotFound,
    one_line,
)
from keras_preempt.checkpoint.layout import MANIFEST, RUN, is_attempt, parse_step
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import Store

_LOOKED_INTO = 50  # folders in which a run is looked for, to name it in a message
_SHOWN = 5


def read_run(store: Store) -> dict[str, Any]:
    """Returns what run.json says: see `identity.check_or_create`.

    Raises:
        ForeignDirectory: there is none; the message says what is there, and what to pass instead.
        UnsupportedFormat: the run was begun in a newer format.
        CorruptCheckpoint: it is not what was written.
        StoreUnavailable: the storage failed, or gives no permission.
    """
    try:
        run = documents.read(store, RUN)
    except NotFound:
        raise ForeignDirectory(
            f"Expected the directory of a run, with {RUN} in it. Received: {_what_it_is(store)}"
        ) from None
    if not isinstance(run.get("run_id"), str) or not isinstance(run.get("model"), list):
        raise CorruptCheckpoint(RUN, "an unexpected structure")
    return run


def _what_it_is(store: Store) -> str:
    url = store.url
    if isinstance(store, LocalStore) and not store.path.is_dir():
        if store.path.exists():
            return f"{url}, which is no directory. Pass the directory that was given to the callback."
        return f"{url}, which does not exist. Check the spelling, and which folder you are in."
    names = store.children("")
    if not names:
        return f"{url}, which is empty. Pass the directory that was given to the callback, after its first start."
    if MANIFEST in names or any(is_attempt(name) for name in names):
        return f"{url}, which is one checkpoint of a run. Pass the directory above that has {RUN} in it."
    if any(parse_step(name) is not None for name in names):
        return f"{url}, which has checkpoints, but lost its {RUN}. Put {RUN} back from a copy."
    runs = [one_line(name) for name in names[:_LOOKED_INTO] if _has_run(store, name)]
    if runs:
        shown = ", ".join(os.path.join(url, name) for name in runs[:_SHOWN])
        more = f" and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
        return f"{url}, which holds runs: {shown}{more}. Pass one of them."
    if "checkpoint" in names or any(name.endswith(".index") for name in names):
        return (
            f"{url}, which holds checkpoints of TensorFlow. Look at them with tf.train.list_variables and "
            "tf.train.load_checkpoint; those of a custom loop are such."
        )
    return f"{url}, with other files in it. Pass the directory that was given to the callback."


def _has_run(store: Store, folder: str) -> bool:
    try:
        store.stat(f"{folder}/{RUN}")
    except (CheckpointError, ValueError):  # Not there, not ours, or no permission: it is only a hint.
        return False
    return True
