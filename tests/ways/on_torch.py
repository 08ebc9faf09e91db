"""What is promised for each way where Keras runs on torch, in one process.

It is what is promised for one device of TensorFlow, but for the ways that are named here. The data of most ways is
tf.data; on torch it is a `DataLoader` of the same samples: see `basics.dataset`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tests.ways.catalogue import inputs_augmented, inputs_tfdata, inputs_torch, shared_shuffles
from tests.ways.catalogue.all_ways import ALL
from tests.ways.catalogue.inputs_tfdata import GIVES_THE_SAME
from tests.ways.way import ONE, Exact, KerasFails, Verdict, Way


@dataclass(frozen=True)
class NotOnTorch:
    """The way cannot be gone on torch, with or without this package; there is no test.

    Attributes:
        reason: Why, as the end of "not on torch: ...".
    """

    reason: str


_OF_TENSORFLOW = NotOnTorch("its data or its `train_step` is TensorFlow's")
_ONE_STEP = KerasFails(
    "a call takes one step on torch", "`steps_per_execution` must be 1 with the PyTorch backend"
)

OTHERWISE: Mapping[str, Verdict | NotOnTorch] = {
    **{
        way.name: _OF_TENSORFLOW
        for module in (inputs_augmented, inputs_tfdata, shared_shuffles)
        for way in module.WAYS
    },
    **dict.fromkeys(
        (
            *(
                "augmenting",
                "recurrent",
                "tensors",
                "vae",
                "vae-arrays",
                "vae-executions",
                "vae-generator",
                "vae-jit",
            ),
            *("vae-py-dataset", "vae-unknown-length", "gan-penalty", "diffusion", "contrastive", "triplets"),
            *("metric-learning", "nested-logs", "logs-by-metric", "plain-variables", "random-op-in-step"),
            *("global-generator-in-step", "optimizer-elsewhere", "value-set-by-callback"),
            *(
                "several-outputs",
                "tuner-shared-data-late-seed",
                "arrays-unseeded",
                "gan",
                "eager-gan",
                "validation-steps",
                "tensorboard",
                "tensorboard-batches",
            ),
        ),
        _OF_TENSORFLOW,
    ),
    "arrays-executions": _ONE_STEP,
    "steps-per-execution": _ONE_STEP,
    "class-weights": KerasFails(
        "a `DataLoader` takes none", "Argument `class_weight` is not supported for torch"
    ),
    "grain-loader-processes": Exact(GIVES_THE_SAME),
    "train-on-batch": NotOnTorch("`PreemptionCheckpointHandler` saves a `tf.train.Checkpoint`"),
}
"""The ways of which something else is promised than for one device of TensorFlow."""

SHORT_FORM = ("loader", "loader-generator", "loader-workers-kept", "arrays")
"""Those that are run without `-m ''`."""


def on_torch(way: Way) -> Way | None:
    """Returns a way with the verdict of torch as that of its only strategy; None if it is not on torch."""
    verdict = OTHERWISE.get(way.name, way.verdicts.get(ONE))
    if verdict is None or isinstance(verdict, NotOnTorch):
        return None
    return replace(way, verdicts={ONE: verdict}, drawn=None)


HERE = [here for way in (*inputs_torch.WAYS, *ALL) if (here := on_torch(way)) is not None]
