"""The random generators that training on torch may draw from: torch's own, Python's and NumPy's, and those of the data.

Keras' own random numbers come from variables: it makes a generator for each call. But a `torch.nn.Dropout`, a
`torch.rand` in a training step and the order of a `DataLoader` come from torch's global generators, one for the CPU and
one for each device.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from keras_preempt.checkpoint.tensors import Array

logger = logging.getLogger("keras_preempt")

_DEVICES = ("cuda", "xpu")
"""Kinds of devices that have a generator each, as modules of torch."""


def states() -> dict[str, Array]:
    """Returns the states of torch's global generators, by device: "cpu", "cuda:0"."""
    found = {"cpu": torch.random.get_rng_state().numpy()}
    for kind in _DEVICES:
        module = getattr(torch, kind)
        if module.is_initialized():
            for index in range(module.device_count()):
                found[f"{kind}:{index}"] = module.get_rng_state(index).numpy()
    return found


def restore(saved: Mapping[str, Array]) -> None:
    """Sets torch's global generators to states that `states` has returned; logs which devices are not there."""
    missing = []
    for device, state in saved.items():
        kind, _, index = device.partition(":")
        value = _tensor(state)
        if kind == "cpu":
            torch.random.set_rng_state(value)
        elif kind in _DEVICES and int(index) < getattr(torch, kind).device_count():
            getattr(torch, kind).set_rng_state(value, int(index))
        else:
            missing.append(device)
    if missing:
        logger.warning(
            "NOT exact: the checkpoint has the state of the random generator of %s, which is not there now.",
            ", ".join(missing),
        )


def _tensor(state: Array) -> torch.Tensor:
    return torch.from_numpy(np.array(state, np.uint8))


@dataclass(frozen=True)
class GeneratorStates:
    """The states of all generators at one moment.

    Attributes:
        devices: Of torch, by device.
        own: Of the generators that the data has for itself.
        python: Python's; None if what comes next is known not to draw from it, or from NumPy's.
        numpy: NumPy's.
    """

    devices: Mapping[str, Array]
    own: Sequence[Array]
    python: Any = None
    numpy: Any = None

    @classmethod
    def take(cls, own: Sequence[torch.Generator], *, everything: bool) -> GeneratorStates:
        of_data = [each.get_state().numpy() for each in own]
        if not everything:
            return cls(states(), of_data)
        return cls(states(), of_data, random.getstate(), np.random.get_state(legacy=True))

    def apply(self, own: Sequence[torch.Generator]) -> None:
        restore(self.devices)
        apply_own(self.own, own)
        if self.python is not None:
            random.setstate(self.python)
            np.random.set_state(self.numpy)

    def is_like(self, other: GeneratorStates) -> bool:
        def flat(states: GeneratorStates) -> list[bytes]:
            arrays = [*states.devices.values(), *states.own, *(states.numpy or ())[1:2]]
            return [np.asarray(each).tobytes() for each in arrays]

        return flat(self) == flat(other) and self.python == other.python

    def to_plain(self) -> dict[str, Any]:
        """Returns it as plain data with arrays; see `keras_preempt.state.plain`."""
        found: dict[str, Any] = {"torch": dict(self.devices), "own": list(self.own)}
        if self.python is not None:
            version, words, gauss = self.python
            found |= {"python": (version, np.array(words, np.uint64), gauss), "numpy": self.numpy}
        return found

    @classmethod
    def from_plain(cls, saved: Mapping[str, Any]) -> GeneratorStates:
        if "python" not in saved:
            return cls(saved["torch"], saved["own"])
        version, words, gauss = saved["python"]
        python = (version, tuple(int(word) for word in words), gauss)
        return cls(saved["torch"], saved["own"], python, saved["numpy"])


def apply_own(saved: Sequence[Array], own: Sequence[torch.Generator]) -> None:
    """Sets the generators of the data. Raises ValueError if it has another number of them than it had."""
    if len(saved) != len(own):
        raise ValueError(
            f"Expected data with {len(saved)} random generators of its own, as it had when the checkpoint was "
            f"written. Received: {len(own)}. Train on the same data, or in another directory."
        )
    for generator, state in zip(own, saved, strict=True):
        generator.set_state(_tensor(state))
