"""The private names of Keras that this package relies on, and whether the installed Keras still has them.

Verified with Keras 3.8.0 to 3.15.1. `tests/test_private_names.py` keeps the table of attributes complete. A name that
is there may still mean something else; the canaries check that.
"""

from __future__ import annotations

import dis
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import keras
from packaging.version import Version

from keras_preempt.backend.bytecode import within
from keras_preempt.backend.versions import NEWEST_KERAS, OLDEST_KERAS
from keras_preempt.checkpoint.errors import PicklableError


class KerasInternalsError(PicklableError, RuntimeError):
    """The installed Keras lacks a private name relied upon, or the name now means something else."""

    def __init__(self, expected: str, received: str) -> None:
        super().__init__(
            f"Expected {expected}, as in Keras {NEWEST_KERAS}. "
            f"Received: {received} in Keras {keras.__version__}. "
            f"Install keras=={NEWEST_KERAS}, or a keras-preempt that knows Keras {keras.__version__}."
        )


def keras_is_from(version: str) -> bool:
    return Version(keras.__version__) >= Version(version)


@dataclass(frozen=True)
class PrivateName:
    """A private function of Keras: where it stands, the parameters it is called with, the Keras that brought it."""

    module: str
    path: str
    parameters: tuple[str, ...]
    since: str = OLDEST_KERAS

    def __str__(self) -> str:
        return f"{self.module}.{self.path}({', '.join(self.parameters)})"

    def owner(self) -> Any:
        """Returns the module or class whose own attribute the function is. Raises KerasInternalsError if it is gone."""
        *parents, _ = self.path.split(".")
        try:
            return functools.reduce(getattr, parents, importlib.import_module(self.module))
        except (ImportError, AttributeError) as error:
            raise KerasInternalsError(str(self), str(error)) from error

    @property
    def expected(self) -> bool:
        """Whether the installed Keras is new enough to have it."""
        return keras_is_from(self.since)

    @property
    def attribute(self) -> str:
        return self.path.rpartition(".")[2]

    def find(self) -> Callable[..., Any]:
        """Returns the function. Raises KerasInternalsError if it is gone, or takes other parameters."""
        function = vars(self.owner()).get(self.attribute)
        if not inspect.isfunction(function):
            raise KerasInternalsError(str(self), "no such function")
        if (parameters := tuple(inspect.signature(function).parameters)) != self.parameters:
            raise KerasInternalsError(str(self), f"parameters ({', '.join(parameters)})")
        return function


GLOBAL_ATTRIBUTE = PrivateName(
    "keras.src.backend.common.global_state",
    "get_global_attribute",
    ("name", "default", "set_to_default"),
)
GLOBAL_SEED_GENERATOR = PrivateName("keras.src.random.seed_generator", "global_seed_generator", ())
IN_STATELESS_SCOPE = PrivateName("keras.src.backend.common.stateless_scope", "in_stateless_scope", ())
AUTOCAST_SCOPE = PrivateName(
    "keras.src.backend.common.variables", "AutocastScope.__init__", ("self", "dtype")
)

STANDARDIZE_BATCH = PrivateName(
    "keras.src.trainers.data_adapters.py_dataset_adapter",
    "PyDatasetAdapter._standardize_batch",
    ("self", "batch"),
)

FUNCTIONS: tuple[PrivateName, ...] = (
    GLOBAL_ATTRIBUTE,
    GLOBAL_SEED_GENERATOR,
    IN_STATELESS_SCOPE,
    AUTOCAST_SCOPE,
    STANDARDIZE_BATCH,
)
"""Those that are called or wrapped; `repairs.FUNCTIONS` has those that are replaced. An import statement would fail
with a bare ImportError, whether or not they are needed."""

ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "keras.src.trainers.data_adapters.tf_dataset_adapter.TFDatasetAdapter": ("_dataset",),
    "keras.src.trainers.data_adapters.py_dataset_adapter.PyDatasetAdapter": (
        "_finite_enqueuer_generator",
        "_finite_generator",
        "_standardize_batch",
    ),
    "keras.src.trainers.data_adapters.py_dataset_adapter.OrderedEnqueuer": ("_run", "_send_py_dataset"),
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
    "keras.src.trainers.trainer.Trainer": ("_compile_metrics",),
    "keras.src.utils.progbar.Progbar": ("_last_update",),
}
"""Names by class: methods, properties, and what its methods set or read on an instance."""

FLUSH = "_flush_futures" if keras_is_from("3.12.0") else "_clear_futures"
"""The method of Keras' container of callbacks that waits for the hooks which it has put off."""

STEPS_AT_FIRST: tuple[int, ...] = (0, 0) if keras_is_from("3.11.0") else (0,)
"""How an epoch iterator counts its first execution: its first and last step, or before that its first one."""

_OF_EPOCH_ITERATORS = (
    "_current_iterator",
    "_enumerate_iterator",
    "_get_iterator",
    "_num_batches",
    "_steps_seen",
    "catch_stop_iteration",
    "data_adapter",
    "reset",
    "steps_per_epoch",
    "steps_per_execution",
)

OF_TRAINERS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "tensorflow": {
        "keras.src.backend.tensorflow.trainer.TensorFlowTrainer": (
            "_distribute_strategy",
            "_eval_epoch_iterator",
            "_get_metrics_result_or_logs",
            "_initial_epoch",
            "_symbolic_build",
        ),
        "keras.src.backend.tensorflow.trainer.TFEpochIterator": (
            "_distributed_dataset",
            *_OF_EPOCH_ITERATORS,
        ),
    },
    "jax": {
        "keras.src.backend.jax.trainer.JAXTrainer": (
            "_eval_epoch_iterator",
            "_get_metrics_result_or_logs",
            "_initial_epoch",
            "jax_state_sync",
            "train_function",
        ),
        "keras.src.backend.jax.trainer.JAXEpochIterator": _OF_EPOCH_ITERATORS,
        "keras.src.backend.Variable": ("_layout", "_value"),
        "keras.src.callbacks.callback_list.CallbackList": (FLUSH,),
        "keras.src.distribution.distribution_lib.ModelParallel": ("_layout_map",),
        "keras.src.utils.module_utils.tensorflow": ("_available",),
        "keras.src.trainers.data_adapters.array_data_adapter.ArrayDataAdapter": ("_get_iterator", "_inputs"),
        **(
            {
                "keras.src.trainers.data_adapters.grain_dataset_adapter.GrainDatasetAdapter": (
                    "_output_signature",
                )
            }
            if keras_is_from("3.11.0")
            else {}
        ),
    },
    "torch": {
        "keras.src.backend.torch.trainer.TorchTrainer": (
            "_eval_epoch_iterator",
            "_get_metrics_result_or_logs",
            "_initial_epoch",
            "train_function",
        ),
        "keras.src.backend.torch.trainer.TorchEpochIterator": _OF_EPOCH_ITERATORS,
        "keras.src.trainers.data_adapters.array_data_adapter.ArrayDataAdapter": ("_inputs",),
        "keras.src.trainers.data_adapters.grain_dataset_adapter.GrainDatasetAdapter": ("_dataset",),
        "keras.src.trainers.data_adapters.torch_data_loader_adapter.TorchDataLoaderAdapter": ("_dataloader",),
        "torch.nn.modules.module.Module": ("_compiled_call_impl",),
        "torch.utils.data.dataloader.DataLoader": ("_iterator",),
        "torch.utils.data.dataloader._BaseDataLoaderIter": ("_index_sampler",),
    },
}
"""The same for the classes that only one backend uses, by backend; on torch also its modules and loaders."""


def lazy_tensorflow() -> Any:
    """Returns Keras' stand-in for TensorFlow, which imports it on first use; None if this Keras has none.

    If it has none, TensorFlow is imported where it is not needed, which only costs time.
    """
    found = _find("keras.src.utils.module_utils.tensorflow")
    return found if found is not None and "_available" in vars(found) else None


def missing() -> list[str]:
    """Returns the attributes in the tables that the installed Keras lacks, each as "Class.name"."""
    looked_for = {**ATTRIBUTES, **OF_TRAINERS.get(keras.backend.backend(), {})}
    return [
        f"{path.rpartition('.')[2]}.{name}"
        for path, names in looked_for.items()
        for name in names
        if (owner := _find(path)) is None or not (hasattr(owner, name) or name in _named(owner))
    ]


def _find(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def _named(owner: type) -> Iterator[str]:
    """Yields the names in the methods of a class and its bases."""
    for base in owner.__mro__:
        for value in vars(base).values():
            function = value.fget if isinstance(value, property) else value
            if isinstance(function, FunctionType):
                for code in within(inspect.unwrap(function).__code__):
                    yield from code.co_names


def reads(code: CodeType, variable: str) -> bool:
    """Whether code reads a variable of an enclosing function, or one that functions within it read."""
    return any(i.opname == "LOAD_DEREF" and i.argval == variable for i in dis.get_instructions(code))
