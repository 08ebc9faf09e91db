"""Reads the final state of a finished run from its checkpoint directory."""

from __future__ import annotations

import os

from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.reader import CheckpointInfo, committed, load
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.cli.compare import MemberState

__all__ = ["NoFinalState", "read_final_state"]


class NoFinalState(Exception):
    """A directory holds no complete checkpoint of the end of training."""


def read_final_state(directory: str | os.PathLike[str], members: int) -> list[MemberState]:
    """Reads and verifies the checkpoint furthest in the training, which has to be that of its end.

    Args:
        directory: a path, or ``gs://bucket/prefix``.
        members: how many workers trained.

    Returns:
        The state of each member, in order; only the first has the mirrored tensors, to hold them once.

    Raises:
        NoFinalState: there is none, or it cannot be read; the message says what to do.
    """
    store = open_store(directory)
    try:
        checkpoints = committed(store)
        if not checkpoints:
            raise NoFinalState(
                f"Expected a committed checkpoint in {directory}. Received: none. "
                "Pass a keras_preempt.PreemptionCallback to fit."
            )
        return [_read_member(store, checkpoints[0], member, members) for member in range(members)]
    except CheckpointError as error:
        raise NoFinalState(f"The final checkpoint in {directory} cannot be read: {error}") from error
    finally:
        store.close()


def _read_member(store: Store, newest: CheckpointInfo, member: int, members: int) -> MemberState:
    loaded = load(store, newest, member, members)
    manifest = loaded.manifest
    if not manifest.finished or manifest.members != members or manifest.missing:
        raise NoFinalState(
            f"Expected a checkpoint of the end of training by {members} workers, each with its own part. "
            f"Received: step {manifest.step}, finished={manifest.finished}, members={manifest.members}, "
            f"missing={list(manifest.missing)}. Train to the end in one fit with a PreemptionCallback."
        )
    saved_at = {"step": manifest.step, "position": manifest.position}
    mirrored = loaded.tensors if member == 0 else {}
    return MemberState(mirrored, loaded.local, {"saved_at": saved_at, **loaded.state})
