"""What is promised for each way where Keras runs on JAX, in one process on one device.

It is what is promised for one device of TensorFlow, but for the ways that are named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tests.ways.way import ONE, Verdict, Way


@dataclass(frozen=True)
class NotOnJax:
    """The way cannot be gone on JAX, with or without this package; there is no test.

    Attributes:
        reason: Why, as the end of "not on JAX: ...".
    """

    reason: str


OTHERWISE: Mapping[str, Verdict | NotOnJax] = {}


def verdict_of(way: Way) -> Verdict | NotOnJax:
    """Returns what is promised for a way on JAX."""
    if ONE not in way.verdicts:
        return NotOnJax("it is for `tf.distribute` alone")
    return OTHERWISE.get(way.name, way.verdicts[ONE])


def on_jax(way: Way) -> Way | None:
    """Returns a way with the verdict of JAX as that of its only strategy; None if it is not on JAX.

    How many batches are drawn is left out: on JAX, Python draws those of the training, too.
    """
    verdict = verdict_of(way)
    if isinstance(verdict, NotOnJax):
        return None
    return replace(way, verdicts={ONE: verdict}, drawn=None)
