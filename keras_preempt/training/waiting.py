"""How long a worker under notice waits for the others in a save."""

from __future__ import annotations

from keras_preempt.training.grace import MARGIN


def longest_wait(left: float, save_seconds: float) -> float:
    """Seconds after which a save that has begun now is to be made without the others that have not done their part.

    That late they are twice as slow as a save is at worst, and so dead rather than busy: writing what they write
    as well would only make them slower. And that early there is room to write everything, at worst twice as
    slowly as ever before the machine goes.

    Args:
        left: Until this machine goes.
        save_seconds: The slowest save that was seen, or what one is expected to take.
    """
    need = 2 * save_seconds + MARGIN
    if left < need:
        return max(0.0, left)  # There is no room: what they still do is all that can be hoped for.
    return max(2 * save_seconds, left - need)
