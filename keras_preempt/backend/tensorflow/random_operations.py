"""What TensorFlow's operations do that a restart may not repeat: the only list in this package.

`tests/backend/tensorflow/test_random_operations.py` compares it with all operations of the installed TensorFlow, so
that new ones are not forgotten.

Verified with TensorFlow 2.16.1 to 2.21.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from keras_preempt.backend.operations import Does

DRAWS = frozenset(
    {
        "AllCandidateSampler",
        "FixedUnigramCandidateSampler",
        "LearnedUnigramCandidateSampler",
        "LogUniformCandidateSampler",
        "Multinomial",
        "NonDeterministicInts",
        "ParameterizedTruncatedNormal",
        "RandomCrop",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomShuffleQueue",
        "RandomShuffleQueueV2",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "RecordInput",
        "SampleDistortedBoundingBox",
        "SampleDistortedBoundingBoxV2",
        "ThreadUnsafeUnigramCandidateSampler",
        "TruncatedNormal",
        "UniformCandidateSampler",
    }
)
"""Draw from a sequence inside the operation, which starts over in each process. No variable holds it."""

UNLESS: dict[str, tuple[Does, str, Any]] = {
    **dict.fromkeys(("CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"), (Does.DRAW, "dropout", 0.0)),
    **dict.fromkeys(("FractionalAvgPool", "FractionalMaxPool"), (Does.DRAW, "deterministic", True)),
    **dict.fromkeys(("LegacySnapshotDataset", "SnapshotDataset"), (Does.ORDER, "shuffle_on_read", False)),
}
"""Do it unless an attribute has a certain value."""

GIVES_ORDER = frozenset(
    {
        "ExperimentalRandomDataset",
        "GlobalShuffleDataset",
        "RandomDataset",
        "SamplingDataset",
        "ShuffleAndRepeatDataset",
        "ShuffleDataset",
    }
)
"""Datasets that order the elements or choose among them; without the number of their version."""

GENERATOR = frozenset(
    {
        "RngReadAndSkip",
        "RngSkip",
        "StatefulRandomBinomial",
        "StatefulStandardNormal",
        "StatefulStandardNormalV2",
        "StatefulTruncatedNormal",
        "StatefulUniform",
        "StatefulUniformFullInt",
        "StatefulUniformInt",
    }
)
"""Draw from a `tf.random.Generator`, whose state is a variable: their first input."""

NO_DOUBT: dict[str, tuple[str, ...]] = {
    "make or drop the seeds of a shuffle's iterators, which are kept": (
        "AnonymousRandomSeedGenerator",
        "AnonymousSeedGenerator",
        "DeleteRandomSeedGenerator",
        "DeleteSeedGenerator",
        "DummySeedGenerator",
    ),
    "take their seed from a tensor, and give the same for the same one": (
        "KMC2ChainInitialization",
        "KmeansPlusPlusInitialization",
        "RandomIndexShuffle",
    ),
    "have a seed that they do not use": ("ComputeAccidentalHits",),
    "use what the forward pass has drawn": (
        "CudnnRNNBackprop",
        "CudnnRNNBackpropV2",
        "CudnnRNNBackpropV3",
        "RandomGammaGrad",
    ),
    "only lay out the weights of an RNN": (
        "CudnnRNNCanonicalToParams",
        "CudnnRNNCanonicalToParamsV2",
        "CudnnRNNParamsSize",
        "CudnnRNNParamsToCanonical",
        "CudnnRNNParamsToCanonicalV2",
    ),
    "give a fixed sequence": ("SobolSample",),
}
"""By reason: operations with a seed, or a name that suggests one, but no state that a restart could lose."""

_VERSION = re.compile(r"(?<=Dataset)V\d+$")
_STATELESS = re.compile(r"Stateless\w+")
_CHANGES = re.compile(
    r"Assign\w*VariableOp|Resource(?:Apply|SparseApply|Scatter|StridedSliceAssign)\w*"
    r"|LookupTable(?:Insert|Remove|Import)\w*"
)
_PYTHON = re.compile(r"(?:Eager)?PyFunc(?:Stateless)?")
_OF_TABLES = re.compile(r"LookupTable\w+")


def does(operation: str, attribute: Callable[[str], Any] = lambda name: None) -> Does | None:
    """Returns what an operation, or a class of datasets, does that a restart may not repeat; None for nothing."""
    if operation in DRAWS:
        return Does.DRAW
    if operation in UNLESS:
        done, name, harmless = UNLESS[operation]
        return None if attribute(name) == harmless else done
    if without_version(operation) in GIVES_ORDER:
        return Does.ORDER
    if operation in GENERATOR:
        return Does.GENERATE
    if _PYTHON.fullmatch(operation):
        return Does.PYTHON
    return Does.CHANGE if _CHANGES.fullmatch(operation) else None


def changes_variable(operation: str) -> bool:
    """Whether an operation changes the variable that is its first input."""
    done = does(operation)
    return done is Does.GENERATE or (done is Does.CHANGE and not _OF_TABLES.fullmatch(operation))


def keeps_state(operation: str) -> bool:
    """Whether TensorFlow cannot save the iterators of a dataset with such an operation in a function."""
    return does(operation) in (Does.DRAW, Does.PYTHON) and not (
        operation in UNLESS or operation.endswith("Stateless")
    )


def without_version(dataset: str) -> str:
    """Returns the name of a dataset's operation without the number of its version, such as "ShuffleDataset"."""
    return _VERSION.sub("", dataset)


def is_known(operation: str) -> bool:
    """Whether it is known what an operation does: by the lists here, or since its name begins with "Stateless"."""
    harmless = any(operation in named for named in NO_DOUBT.values())
    return harmless or bool(_STATELESS.fullmatch(operation)) or does(operation) is not None
