"""For the benchmarks of saving: a model of a given size, and the memory that a call takes (Linux)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

_TABLE_SHARE = 4  # a quarter of the bytes is one embedding table, which a checkpoint has to cut


def model_of(size: int, *, seed: int = 0) -> keras.Model:
    """Returns a model with about `size` bytes of float32 weights: an embedding table and square layers.

    A step of plain gradient descent costs far less than copying the weights of the table.
    """
    keras.utils.set_random_seed(seed)
    width = 4096 if size >= 2 << 30 else 2048 if size >= 256 << 20 else 512
    layers = max(1, (size - size // _TABLE_SHARE) // (4 * width * width))
    inputs = keras.Input((4,), dtype="int32")
    hidden = keras.layers.Embedding(max(1, size // _TABLE_SHARE // (4 * width)), width)(inputs)
    hidden = keras.layers.GlobalAveragePooling1D()(hidden)
    for _ in range(layers):
        hidden = keras.layers.Dense(width)(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(1e-3), "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def bytes_of(model: keras.Model) -> int:
    """How many bytes the variables of a model take."""
    return sum(keras.ops.convert_to_numpy(variable).nbytes for variable in model.variables)


def peak_of(call: Callable[[], object]) -> int:
    """Makes a call; returns by how many bytes the process grew at most during it."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = _status("VmRSS")
    call()
    return max(_status("VmHWM") - before, 0)


def touch(size: int) -> None:
    """Uses that many bytes of memory and releases them.

    A virtual machine may have to fetch memory from its host that it has not used for seconds, which is slower than a
    disk: the first contestant would pay for it.
    """
    np.empty(size, np.uint8).fill(1)


def _status(field: str) -> int:
    match = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if match is None:
        raise OSError(f"Expected {field} in /proc/self/status. Received: none. Run this on Linux.")
    return int(match.group(1)) * 1024
