"""Where the input continues when an epoch is divided into other batches than before. Pure functions.

Positions are counted in batches of all replicas together. From one setup to another they are converted through
samples, and rounded down: a sample may be used again, and none is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from keras_preempt.checkpoint.setup import Setup


@dataclass(frozen=True)
class Continuation:
    """Where a fit on another setup continues."""

    where: dict[str, Any]  # The position of the training, as in the manifest.
    place: dict[str, Any]  # The position of the input, as from `InputFeed.position`.
    sample: int | None  # How many samples of the epoch were used; None if the size of a batch is not known.
    again: int | None  # How many of these will be used again; None if that is not known.
    warnings: tuple[str, ...]  # What is not exact.


def convert(
    where: Mapping[str, Any],
    place: Mapping[str, Any],
    old: Setup,
    new: Setup,
    *,
    steps_per_execution: int,
    num_batches: int | None,
) -> Continuation:
    """Converts the position `where` and that of the input, `place`, of a checkpoint from an old setup to a new one.

    An epoch can continue only at a multiple of `steps_per_execution`. `num_batches` is put into `place` as it is.
    """
    where, place, warnings = dict(where), dict(place), []
    inside = where["phase"] == "train"
    used = int(where["batch"]) if inside else 0
    ratio = None  # The number of new batches per old one, as a fraction; None if it is not known.
    if old.global_batch is not None and new.global_batch is not None:
        ratio = old.global_batch, new.global_batch
    elif old.batches is not None and new.batches is not None:
        ratio = new.batches, old.batches
    if inside and ratio is None:
        warnings.append(
            "neither the size of a batch nor the number of batches in an epoch is known, so that the epoch begins "
            "again; pass steps_per_epoch, or batch(..., drop_remainder=True)"
        )
        where.update(phase="epoch", batch=0)
        place["current"] = inside = False
        place["iterators"] = before = max(0, int(place["iterators"]) - 1)
        place["batches"] = place["drawn_before"][before - 1] if before else 0
        place["drawn_before"] = place["drawn_before"][: max(0, before - 1)]
    numerator, denominator = ratio or (1, 1)

    def scaled(batches: int) -> int:
        rounded = batches * numerator // denominator
        # A whole epoch stays one, though its last batch may be part of one.
        whole = batches == old.batches and new.batches is not None and abs(new.batches - rounded) <= 1
        return new.batches if whole and new.batches is not None else rounded

    batch = 0
    if inside:
        batch = used * numerator // denominator
        if new.batches is not None:
            batch = min(batch, new.batches - 1)
        batch -= batch % steps_per_execution
        where["batch"] = batch
    place["batches"] = scaled(int(place["batches"]) - used) + batch if inside else scaled(place["batches"])
    place["num_batches"] = num_batches
    if not _shift(place, old.built_from, new.built_from, scaled):
        warnings.append(
            "building the model under a strategy has used up the order of the first epoch: in it, some samples are "
            "used twice and as many are not"
        )
    sample = again = None
    if new.global_batch is not None and (ratio is not None or not inside):
        sample = batch * new.global_batch
        if inside and old.global_batch is not None:
            again = used * old.global_batch - sample
    elif not inside:
        sample = 0
    return Continuation(where, place, sample, again, tuple(warnings))


def _shift(place: dict[str, Any], old_first: int, new_first: int, scaled: Callable[[int], int]) -> bool:
    """Counts the iterators from the first one that this process can still make; False if that is too late.

    The order of an epoch depends on the number of its iterator, counting those made before the callback was called.
    """
    made = int(place["iterators"])
    if made == 0:
        return True
    # Keras draws one batch to build the model.
    drawn = [1] * old_first + [scaled(int(batches)) for batches in place["drawn_before"][: made - 1]]
    there = made + old_first - new_first
    place["iterators"] = max(there, 1)
    place["drawn_before"] = drawn[new_first:] if there > 1 else []
    return there >= 1
