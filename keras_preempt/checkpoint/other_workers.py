"""Reads a checkpoint for workers that are not as many, or have not as many replicas, as those that saved it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.reader import CheckpointInfo, Loaded, load, load_own
from keras_preempt.checkpoint.setup import Setup
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.checkpoint.storage.transfers import Shown, silent
from keras_preempt.checkpoint.tensors import Array

SETUP = "setup"
"""The field of a worker's state that holds the `Setup` it was saved on."""


@dataclass(frozen=True)
class Own:
    """What one worker saved of its own.

    Attributes:
        member: Its number.
        local: Its own tensors, by name.
        state: Its own state.
    """

    member: int
    local: dict[str, Array]
    state: dict[str, Any]


@dataclass(frozen=True)
class LoadedFromOthers(Loaded):
    """What one worker gets from a checkpoint of another setup: the own state of all who saved it.

    Attributes:
        setup: What they trained on.
        workers: Those whose part is there, by number; at least one.
    """

    setup: Setup
    workers: tuple[Own, ...]


def load_for(store: Store, info: CheckpointInfo, member: int, setup: Setup, shown: Shown = silent) -> Loaded:
    """Reads what one worker needs from a checkpoint, and verifies every byte of it.

    Args:
        store: The run's directory.
        info: Which checkpoint.
        member: The worker's number.
        setup: What it trains on.
        shown: Shows how much of it is read.

    Returns:
        The worker's own part, as from `reader.load`, if the checkpoint was saved on the same setup; else a
        `LoadedFromOthers`, from which its part is to be made.

    Raises:
        CheckpointError: As from `reader.load`; or it was saved by another number of workers and does not say on
            what.
    """
    loaded = load(store, info, member, setup.workers, shown)
    saved_on = loaded.state.get(SETUP)
    if saved_on == setup.to_json() or (saved_on is None and loaded.manifest.members == setup.workers):
        return loaded
    if saved_on is None:
        raise CheckpointError(
            f"Expected a checkpoint that says what it was trained on, to continue it on {setup.workers} workers. "
            f"Received: {info.directory}, which does not. Start {loaded.manifest.members} workers."
        )
    own = load_own(store, info, shown)
    return LoadedFromOthers(
        loaded.manifest,
        loaded.tensors,
        loaded.local,
        loaded.state,
        loaded.substituted_from,
        Setup.from_json(saved_on, info.directory),
        tuple(Own(number, *own[number]) for number in sorted(own)),
    )
