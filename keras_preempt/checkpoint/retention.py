"""Which checkpoints are thrown away, and in which order their files go."""

from __future__ import annotations

import contextlib

from keras_preempt.checkpoint.errors import NotFound
from keras_preempt.checkpoint.layout import (
    MANIFEST,
    attempt_directory,
    is_attempt,
    is_attempt_file,
    parse_attempt,
    parse_step,
    step_directory,
)
from keras_preempt.checkpoint.reader import committed
from keras_preempt.checkpoint.store import Store


def retain(store: Store, max_to_keep: int, incarnation: int) -> list[str]:
    """Removes what a commit has made superfluous; to be called after one.

    Kept are the `max_to_keep` checkpoints that were committed last, by incarnation and round. Not by step:
    after a fall back to an older checkpoint the newest commit has a lower step than the broken one that it
    replaces, and it is the newest commit that must stay. Attempts that were never committed go if they belong
    to an earlier incarnation. A checkpoint whose manifest cannot be read stays, and does not count; so does
    everything that no save has written.

    Args:
        store: the run's directory.
        max_to_keep: at least 1.
        incarnation: the caller's own.

    Returns:
        Names of the attempts' folders that were removed.

    Raises:
        ValueError: `max_to_keep` is below 1.
        StoreUnavailable: the storage failed; what is left is a valid directory.
    """
    if max_to_keep < 1:
        raise ValueError(
            f"Expected max_to_keep to be 1 or more. Received: {max_to_keep}. Keep at least the newest "
            "checkpoint."
        )
    checkpoints = committed(store)
    readable = [info for info in checkpoints if info.error is None]
    readable.sort(key=lambda info: (*parse_attempt(info.attempt), info.step), reverse=True)
    removed = [info.directory for info in readable[max_to_keep:]]
    # An attempt may have been committed since the listing, but by no incarnation that is over.
    removed += _abandoned(store, incarnation)
    for directory in removed:
        _remove(store, directory)
    return removed


def _abandoned(store: Store, incarnation: int) -> list[str]:
    found = []
    for folder in store.children(""):
        step = parse_step(folder)
        if step is None:
            continue
        for attempt in store.children(step_directory(step)):
            if not is_attempt(attempt) or parse_attempt(attempt)[0] >= incarnation:
                continue
            directory = attempt_directory(step, attempt)
            if MANIFEST not in store.children(directory):
                found.append(directory)
    return found


def _remove(store: Store, directory: str) -> None:
    """Removes an attempt, its manifest first: what is left after a crash in between is no checkpoint."""
    with contextlib.suppress(NotFound):
        store.delete(f"{directory}/{MANIFEST}")
    names = [info.name for info in store.list(directory)]
    ours = [name for name in names if is_attempt_file(name[len(directory) + 1 :])]
    if len(ours) == len(names):
        store.delete_tree(directory)
        return
    for name in ours:
        with contextlib.suppress(NotFound):
            store.delete(name)
