"""The private attributes of Keras' classes that this package reads or replaces, and whether they are still there.

Verified with Keras 3.8.0 to 3.15.1. `tests/test_private_names.py` holds the table complete. That a name is there does
not say that it still means the same; the canaries look at that.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "keras.src.backend.tensorflow.trainer.TensorFlowTrainer": (
        "_distribute_strategy",
        "_eval_epoch_iterator",
        "_get_metrics_result_or_logs",
        "_initial_epoch",
        "_symbolic_build",
    ),
    "keras.src.backend.tensorflow.trainer.TFEpochIterator": (
        "_current_iterator",
        "_distributed_dataset",
        "_enumerate_iterator",
        "_get_iterator",
        "_num_batches",
        "_steps_seen",
        "catch_stop_iteration",
        "data_adapter",
        "reset",
        "steps_per_epoch",
        "steps_per_execution",
    ),
    "keras.src.trainers.data_adapters.tf_dataset_adapter.TFDatasetAdapter": ("_dataset",),
    "keras.src.layers.layer.Layer": ("_flatten_layers",),
    "keras.src.backend.Variable": ("_value",),
    "keras.src.optimizers.base_optimizer.BaseOptimizer": ("_accumulated_gradients", "_iterations"),
    "keras.src.callbacks.model_checkpoint.ModelCheckpoint": (
        "_batches_seen_since_last_saving",
        "_last_batch_seen",
    ),
    "keras.src.callbacks.swap_ema_weights.SwapEMAWeights": ("_ema_weights_in_model",),
    "keras.src.callbacks.tensorboard.TensorBoard": (
        "_global_test_batch",
        "_global_train_batch",
        "_pop_writer",
        "_push_writer",
        "_train_writer",
        "_writers",
    ),
    "keras.src.utils.progbar.Progbar": ("_last_update",),
}
"""Names by class: methods, properties, and what its methods set or read on an instance."""


def missing() -> list[str]:
    """Returns those that the installed Keras lacks, each as "Class.name"; of a class that is gone, all."""
    return [
        f"{path.rpartition('.')[2]}.{name}"
        for path, names in ATTRIBUTES.items()
        for name in names
        if not _has(_find(path), name)
    ]


def _find(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def _has(owner: Any, name: str) -> bool:
    return owner is not None and (hasattr(owner, name) or name in set(_named(owner)))


def _named(owner: type) -> Iterator[str]:
    """The names of attributes in the methods of a class and its bases."""
    for base in owner.__mro__:
        for value in vars(base).values():
            function = value.fget if isinstance(value, property) else value
            if isinstance(function, FunctionType):
                yield from _of_code(inspect.unwrap(function).__code__)


def _of_code(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of_code(constant)
