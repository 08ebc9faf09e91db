"""The keys of a small cluster's rounds: found by number, and inserted once."""

from __future__ import annotations

from keras_preempt.agreement.member import Request
from tests.agreement.alignment_cluster import Keys, Round


def round_of(keys: Keys, number: int, workers: int) -> Round:
    """What stands in a round of so many workers."""
    for entry in keys:
        if entry.number == number:
            return entry
    return Round(number, None, (None,) * workers, None)


def put(keys: Keys, changed: Round) -> Keys:
    """The keys with what has changed in one round."""
    if changed.plan is not None:  # no one reads the answers again
        changed = changed._replace(answers=())
    others = [entry for entry in keys if entry.number != changed.number]
    return tuple(sorted([*others, changed], key=lambda entry: entry.number))


def say(request: Request, keys: Keys, workers: int) -> Keys:
    """The keys after a call, which is inserted unless one stands."""
    entry = round_of(keys, request.round, workers)
    return keys if entry.call is not None else put(keys, entry._replace(call=request.call))
