"""Copies of values in host memory: of the needed elements only, by several threads if they are large."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from keras_preempt.checkpoint.tensors import Array, empty
from keras_preempt.process.threads import Pool

LARGE = 1 << 20
"""Bytes from which a copy is worth avoiding, or dividing among threads."""

_THREADS = 4
"""To copy with: the first touch of new memory costs most, and several threads can do that at once."""

_PIECE = 16 << 20  # Bytes that one thread copies at a time.

Runs = Mapping[str, tuple[int, int]]
"""The first element and the one after the last of each flattened tensor, by name."""


def copied(views: Mapping[str, Array], runs: Runs, is_a_copy: Callable[[str], bool]) -> dict[str, Array]:
    """Returns copies of values that stay as they are when what the values are views of is assigned to.

    `runs` has the elements that are needed, by name; all of a value without an entry. Only these are copied.
    """
    values: dict[str, Array] = {}
    pieces: list[tuple[Array, Array]] = []
    for name, value in views.items():
        values[name] = value
        if not is_a_copy(name):
            values[name] = empty(value.dtype.name, value.shape)
            run = slice(*runs.get(name, (0, value.size)))
            target, source = (each.reshape(-1)[run].view(np.uint8) for each in (values[name], value))
            cuts = [slice(start, start + _PIECE) for start in range(0, len(target), _PIECE)]
            pieces += [(target[cut], source[cut]) for cut in cuts]
    if sum(target.nbytes for target, _ in pieces) < LARGE:
        for target, source in pieces:
            np.copyto(target, source)
    else:
        with Pool(_THREADS, "keras_preempt-copy") as pool:
            for copied in [pool.submit(np.copyto, target, source) for target, source in pieces]:
                copied.result()
    return values
