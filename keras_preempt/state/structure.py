"""The structure of what a fit has saved, looked at before the workers agree on a checkpoint: so they can pass it over.

Checksums say that a file is what was written, not who wrote it.
"""

from __future__ import annotations

from typing import Any

from keras_preempt.agreement.messages import PHASES
from keras_preempt.checkpoint.documents import of_file
from keras_preempt.checkpoint.layout import MANIFEST, part_file
from keras_preempt.checkpoint.other_workers import LoadedFromOthers
from keras_preempt.checkpoint.reader import CheckpointInfo, Loaded

_LEAST = -(2**31)  # A count may be below 0 where Keras has counted ahead.


def checked(info: CheckpointInfo, loaded: Loaded, member: int) -> Loaded:
    """Returns what was read of a checkpoint.

    Args:
        info: The checkpoint.
        loaded: What this worker has read of it.
        member: The worker's number.

    Raises:
        CorruptCheckpoint: No fit has written it.
    """
    place = of_file(loaded.manifest.position, f"{info.directory}/{MANIFEST}")
    place.choice("phase", PHASES)
    for name in ("epoch", "batch", "step"):
        place.integer(name)
    states = {member if loaded.substituted_from is None else loaded.substituted_from: loaded.state}
    if isinstance(loaded, LoadedFromOthers):
        states = {own.member: own.state for own in loaded.workers}
    for whose, state in states.items():
        _check_state(state, f"{info.directory}/{part_file(whose)}")
    return loaded


def _check_state(state: dict[str, Any], file: str) -> None:
    fields = of_file(state, file)
    for name in ("callbacks", "random"):
        fields.mapping(name)
    fields.boolean("stopped")
    place = fields.inner("input").inner("position")
    for name in ("iterators", "batches"):
        place.integer(name, minimum=_LEAST)
    place.integers("drawn_before", minimum=_LEAST)
    place.boolean("current")
    if not place.null("num_batches"):
        place.integer("num_batches")
