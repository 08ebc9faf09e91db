"""What is promised for each way where Keras runs on JAX, in one process on one device.

It is what is promised for one device of TensorFlow, but for the ways that are named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tests.ways.catalogue.inputs_tfdata import GIVES_THE_SAME
from tests.ways.way import ONE, Exact, KerasFails, Verdict, Way


@dataclass(frozen=True)
class NotOnJax:
    """The way cannot be gone on JAX, with or without this package; there is no test.

    Attributes:
        reason: Why, as the end of "not on JAX: ...".
    """

    reason: str


_TAPE = NotOnJax("its `train_step` is written with `tf.GradientTape`, and JAX needs one without side effects")
_OF_TENSORFLOW = NotOnJax("what its `train_step` draws from or changes is TensorFlow's")

OTHERWISE: Mapping[str, Verdict | NotOnJax] = {
    "arrays-unseeded": Exact(),  # NumPy draws their order, and its state is kept.
    "augmentation-layer": KerasFails(
        "a layer that is not made for tf.data cannot be called in it", "Cannot convert a symbolic tf.Tensor"
    ),
    "grain-loader-processes": Exact(GIVES_THE_SAME),
    "own-metric": KerasFails(
        "the result of a metric cannot be its variable itself, only its value", "Triggering __jax_array__"
    ),
    "plain-variables": _OF_TENSORFLOW,
    "random-op-in-step": _OF_TENSORFLOW,
    "global-generator-in-step": _OF_TENSORFLOW,
    "optimizer-elsewhere": _OF_TENSORFLOW,
    "own-optimizers-unbuilt": NotOnJax("a compiled step cannot make the variables of an optimizer"),
    **dict.fromkeys(
        (
            "gan",
            "gan-penalty",
            "eager-gan",
            "diffusion",
            "contrastive",
            "triplets",
            "metric-learning",
            "nested-logs",
            "logs-by-metric",
            "value-set-by-callback",
        ),
        _TAPE,
    ),
    "train-on-batch": NotOnJax("`PreemptionCheckpointHandler` saves a `tf.train.Checkpoint`"),
}
"""The ways of which something else is promised than for one device of TensorFlow."""

NOT_DRILLED = frozenset({"torch"})
"""The ways that no test has held yet: nothing is promised for them."""

SHORT_FORM = ("py-dataset-threads",)
"""Those that `make test` runs; `make chaos` runs all."""


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
