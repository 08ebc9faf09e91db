"""The value of a variable of Keras on torch, a `torch.nn.Parameter`, and of what modules of torch hold besides.

Verified with Keras 3.15.1 and torch 2.6.0 to 2.15.0; tests/backend/torch/test_canaries.py has a canary for each private
name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from keras_preempt.backend.copies import Runs, copied
from keras_preempt.backend.keras.model_parts import layers_of, named_attributes
from keras_preempt.backend.seam import Variables
from keras_preempt.checkpoint.dtypes import dtype_of
from keras_preempt.checkpoint.tensors import Array

_BITS = {1: torch.uint8, 2: torch.int16}
"""Integers of as many bytes, as which the types of numbers that NumPy lacks are given to it."""


class PlainTensor:
    """A tensor of a module that Keras does not track, with the attributes of its variables; `path` says where it is.

    The module may put another tensor in its place (`self.mean = 0.9 * self.mean + ...`), so it is looked up each time.
    """

    def __init__(self, path: str, module: torch.nn.Module, attribute: str) -> None:
        self.path = self.name = path
        self.place = (id(module), attribute)
        self._module, self._attribute = module, attribute
        self.shape = tuple(self.value.shape)
        self.dtype = str(self.value.dtype).removeprefix("torch.")

    @property
    def value(self) -> Any:
        return getattr(self._module, self._attribute)

    _value = value


class PlainGenerator:
    """The state of a `torch.Generator` in the same form. It is an own object, so its generator stands for it."""

    def __init__(self, path: str, generator: torch.Generator) -> None:
        self.path = self.name = path
        self.value = self.generator = generator
        self.shape = tuple(generator.get_state().shape)
        self.dtype = "uint8"


class TorchVariables(Variables):
    """See `Variables`."""

    def plain_variables(self, model: Any) -> Sequence[Any]:
        """See `Variables.plain_variables`: the parameters and buffers of torch's modules, and generators in attributes.

        A buffer is what a module remembers and does not train, such as the statistics of a `torch.nn.BatchNorm1d`.
        """
        found: dict[int, Any] = {}
        for layer in layers_of(model):
            # Each layer for itself: a model of Keras does not register its layers with torch.
            for inside, module in torch.nn.Module.named_modules(layer):
                path = f"{layer.name}/{inside}." if inside else f"{layer.name}/"
                for name, value in (*_parameters(module), *module.named_buffers(recurse=False)):
                    found.setdefault(id(value), PlainTensor(path + name, module, name))
            for name, value in named_attributes(layer):
                if isinstance(value, torch.Generator):
                    found.setdefault(id(value), PlainGenerator(f"{layer.name}/{name}", value))
        return list(found.values())

    def identity(self, part: Any) -> int:
        if isinstance(part, PlainTensor):
            return hash(part.place)
        return id(part.generator if isinstance(part, PlainGenerator) else part)

    def may_change(self, value: Any) -> bool:
        """See `Variables.may_change`: the result of a metric may be a view of its variable."""
        return self.is_tensor(value)

    def is_tensor(self, value: Any) -> bool:
        return self.is_variable(value) or isinstance(value, torch.Tensor)

    def to_tensor(self, value: Any) -> Any:
        return _tensor_of(np.array(value))

    def views(self, components: Mapping[str, Any]) -> dict[str, Array]:
        """See `Variables.views`: without a copy of those on a CPU."""
        return {
            name: each if isinstance(each, np.ndarray) else _host(each) for name, each in components.items()
        }

    def copies(self, components: Mapping[str, Any], runs: Runs) -> dict[str, Array]:
        def is_a_copy(name: str) -> bool:
            each = components[name]
            if isinstance(each, np.ndarray):
                return False
            return isinstance(each, PlainGenerator) or each._value.device.type != "cpu" or _is_cast(each)

        return copied(self.views(components), runs, is_a_copy)

    def assign(self, components: Iterable[Any], array: Array) -> None:
        for variable in components:
            if tuple(array.shape) != tuple(variable.shape):
                raise ValueError(
                    f"Expected a value of shape {tuple(variable.shape)} for {variable.path!r}. Received: {array.shape}."
                )
            if isinstance(variable, PlainGenerator):
                variable.generator.set_state(torch.from_numpy(np.array(array)))
                continue
            with torch.no_grad():
                variable._value.copy_(_tensor_of(array))


def _parameters(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yields the parameters that are attributes of a module; what Keras tracks is in a dictionary beside them."""
    if isinstance(module, torch.nn.ParameterDict):
        return
    yield from torch.nn.Module.named_parameters(module, recurse=False)


def _is_cast(variable: Any) -> bool:
    """Whether torch holds a value in another type than that of the variable: it has no uint16 and uint32 to train."""
    return str(variable._value.dtype) != f"torch.{variable.dtype}"


def _host(variable: Any) -> Array:
    if isinstance(variable, PlainGenerator):
        return np.asarray(variable.generator.get_state().numpy())
    value = variable._value.detach().cpu()
    name = str(value.dtype).removeprefix("torch.")
    wanted = dtype_of(str(variable.dtype))
    if dtype_of(name).isbuiltin == 1:
        array = np.asarray(value.numpy())
    else:
        array = np.asarray(value.contiguous().view(_BITS[value.element_size()]).numpy()).view(dtype_of(name))
    return array if array.dtype == wanted else array.astype(wanted)


def _tensor_of(array: Array) -> torch.Tensor:
    """Returns an array as a tensor of the same values, in the same memory where that can be."""
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = np.array(array, order="C")
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    bits = array.view({1: np.uint8, 2: np.int16}[array.dtype.itemsize])
    return torch.from_numpy(bits).view(getattr(torch, array.dtype.name))
