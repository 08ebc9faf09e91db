"""How fast a model's state is saved and restored on JAX, compared with Orbax and with the limit of the disk.

Saves and restores the variables of one Keras model in turn with each of: this package as at a notice (from when
training stops to the commit) and in the background, Orbax' `CheckpointManager` without and with async
checkpointing, and one stream of `os.write` or `os.readv` of the same bytes, which is the limit. Every one ends with
all files and directories flushed to the disk. Restoring is measured with files that the system has in its memory,
and with files that it has not.

"held up" is how long training waits for a save that goes on in the background: until the call returns, and what the
next step takes longer. A step here is a jitted one that computes new values of all weights and is given the old
ones to write into, as Keras' steps are: where those are still being saved, on a CPU it has to take other memory.
Orbax has to be installed: pip install orbax-checkpoint.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from figures import ON_JAX, Aims, conditions, table, tell, unsteady
from files import forget, remember
from needs import require

if TYPE_CHECKING:
    from jax_checkpointers import Checkpointer

_COLUMNS = ("save", "restore, cached", "restore, not cached")
_SAVE = _COLUMNS[0]

Times = dict[str, dict[str, list[float]]]


class Step:
    """A step that computes new values of all weights, and is given the old ones to write into.

    Args:
        model: The model.
    """

    def __init__(self, model: Any) -> None:
        import jax

        self._model = model
        self._compute = jax.jit(
            lambda values: jax.tree.map(lambda value: value * 1.0, values), donate_argnums=0
        )

    def __call__(self) -> None:
        """Trains, and waits for the device."""
        import jax
        from jax_checkpointers import values_of

        values = jax.block_until_ready(self._compute(values_of(self._model)))
        for variable in self._model.variables:
            variable.assign(values[variable.path])


def measure(
    found: Sequence[Checkpointer], step: Callable[[], None], root: Path, repetitions: int
) -> tuple[Times, dict[str, list[float]]]:
    """Has all take turns; the first time warms up.

    Returns:
        Seconds by column and name of the checkpointer; and how long each held training up that saves in the background.
    """
    times: Times = {column: {each.name: [] for each in found} for column in _COLUMNS}
    held: dict[str, list[float]] = {each.name: [] for each in found if each.background}
    for number in range(repetitions + 1):
        start = number % len(found)
        for each in (*found[start:], *found[:start]):
            folder = root / f"{each.name.replace('/', ' ')} {number}"
            each.prepare(folder)
            began = time.perf_counter()
            each.begin(folder)()
            taken = [time.perf_counter() - began]
            remember(folder)
            taken.append(_seconds(lambda one=each, at=folder: one.restore(at)))
            forget(folder)
            taken.append(_seconds(lambda one=each, at=folder: one.restore(at)))
            shutil.rmtree(folder)
            waited = held_up(each, step, folder) if each.background else 0.0
            gc.collect()
            if number:
                for column, seconds in zip(_COLUMNS, taken, strict=True):
                    times[column][each.name].append(seconds)
                if each.background:
                    held[each.name].append(waited)
    return times, held


def held_up(checkpointer: Checkpointer, step: Callable[[], None], folder: Path) -> float:
    """Saves in the background; returns for how many seconds training was held up."""
    checkpointer.prepare(folder)
    step()
    alone = _seconds(step)
    began = time.perf_counter()
    end = checkpointer.begin(folder)
    step()
    waited = time.perf_counter() - began - alone
    end()
    shutil.rmtree(folder)
    return waited


def _seconds(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def report(times: Times, held: dict[str, list[float]], size: int, aims: Aims) -> str:
    """Returns the table, and judges our speed beside that of Orbax."""
    names = list(times[_SAVE])
    ours, background, sync, behind, limit = names
    rows = []
    for column in _COLUMNS:
        median = {name: statistics.median(values) for name, values in times[column].items()}
        for name, seconds in median.items():
            waited = statistics.median(held[name]) if column == _SAVE and name in held else None
            rows.append(
                [
                    f"{column}: {name}",
                    f"{seconds * 1000:.0f}",
                    f"{size / seconds / 1e6:.0f}",
                    f"{median[limit] / seconds:.2f}",
                    f"{median[sync] / seconds:.2f}",
                    "" if waited is None else f"{waited * 1000:.0f}",
                ]
            )
        unsure = unsteady(times[column][limit])
        pairs = [(ours, sync), (ours, behind), (background, behind)] if column == _SAVE else [(ours, sync)]
        for mine, peer in pairs:
            ratio = median[peer] / median[mine]
            tell(f"{column} on JAX, {size / 1e6:.0f} MB, {mine}", peer, ratio, better="more")
            aims.check(f"{column}: {mine}, x {peer}", ratio, "at least", 1, unsure=unsure)
    waits = {name: statistics.median(values) for name, values in held.items()}
    tell("training held up by a save on JAX", behind, waits[background] / waits[behind], better="less")
    return table(["", "ms", "MB/s", "x limit", "x Orbax, sync", "held up, ms"], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gb", type=float, default=0.5, help="size of the state in GB (10^9 bytes)")
    parser.add_argument("--repetitions", type=int, default=3, help="of each, after one that warms up")
    parser.add_argument("--directory", type=Path, help="where to write; a temporary directory by default")
    parser.add_argument("--no-aims", action="store_true", help="for states too small to mean anything")
    options = parser.parse_args(arguments)
    if options.gb <= 0 or options.repetitions < 1:
        parser.error("Expected a size above 0 and at least 1 repetition.")
    require("orbax-checkpoint", "orbax.checkpoint")
    from jax_checkpointers import checkpointers  # Needs Orbax.
    from state import bytes_of, model_of

    for name in ("keras_preempt", "absl"):
        logging.getLogger(name).setLevel(logging.WARNING)
    began = time.monotonic()
    print(conditions(*ON_JAX, "orbax-checkpoint"), flush=True)
    with tempfile.TemporaryDirectory(dir=options.directory) as temporary:
        model = model_of(round(options.gb * 1e9))
        size = bytes_of(model)
        times, held = measure(checkpointers(model), Step(model), Path(temporary), options.repetitions)
    aims = Aims(apply=not options.no_aims)
    text = report(times, held, size, aims)
    print(
        f"{size / 1e6:.0f} MB of state, {options.repetitions} repetitions, medians, "
        f"{time.monotonic() - began:.0f} s in all\n\n{text}"
    )
    return aims.report()


if __name__ == "__main__":
    sys.exit(main())
