"""How fast a model's state is saved and restored, compared with other ways and with the limit of the disk.

Saves and restores the variables of one Keras model in turn with each of: this package (capture, files, part
list, commit), `tf.train.Checkpoint`, `Model.save_weights`, `safetensors.numpy.save_file`, Orbax (if it is
installed), and one stream of `os.write` or `os.readv` of the same bytes, which is the limit. Every one ends with
all files and directories flushed to the disk. Restoring is measured with files that the system has in its cache,
and with files that it has not. Prints medians, and the peak of the memory that each takes beyond the model's own,
measured in a process of its own. A second table: how several processes share a save.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from checkpointers import Checkpointer, checkpointers
from figures import Aims, conditions, table, tell, unsteady
from files import forget, remember
from shared_save import share_out
from state import bytes_of, model_of, peak_of, touch

_LIMIT = 600.0  # seconds for a process that measures memory
_COLUMNS = ("save", "restore, cached", "restore, not cached")

COLD = 0.8
"""The least speed of the slowest restore of what is not cached, over that of a plain read of as many bytes."""

Times = dict[str, dict[str, list[float]]]


def measure(found: Sequence[Checkpointer], root: Path, repetitions: int, size: int) -> Times:
    """Returns seconds by column and name of the checkpointer, of each repetition; all take turns."""
    times: Times = {column: {checkpointer.name: [] for checkpointer in found} for column in _COLUMNS}
    for number in range(repetitions + 1):
        for checkpointer in rotated(found, number):
            folder = root / f"{checkpointer.name.replace('/', ' ')} {number}"
            checkpointer.prepare(folder)
            taken = [_seconds(checkpointer.save, folder, size)]
            remember(folder)
            taken.append(_seconds(checkpointer.restore, folder, size))
            forget(folder)
            taken.append(_seconds(checkpointer.restore, folder, size))
            shutil.rmtree(folder)
            if number:  # the first time warms up
                for column, seconds in zip(_COLUMNS, taken, strict=True):
                    times[column][checkpointer.name].append(seconds)
    return times


def rotated(found: Sequence[Checkpointer], number: int) -> list[Checkpointer]:
    """Rotates the order each time, so that none always comes after the same one."""
    start = number % len(found)
    return [*found[start:], *found[:start]]


def _seconds(call: Callable[[Path], None], folder: Path, size: int) -> float:
    touch(min(2 * size, size + (1 << 30)))
    began = time.perf_counter()
    call(folder)
    return time.perf_counter() - began


def report(times: Times, size: int, peaks: dict[str, dict[str, float]], aims: Aims) -> str:
    """Returns the table, and judges the speed beside TensorFlow's and a plain read, and the memory."""
    names = list(times[_COLUMNS[0]])
    ours, tensorflow, limit = names[0], names[1], names[-1]
    rows = []
    for column in _COLUMNS:
        medians = {name: statistics.median(times[column][name]) for name in names}
        for name in names:
            peak = peaks.get(name, {}).get(column)
            rows.append(
                [
                    f"{column}: {name}",
                    f"{medians[name] * 1000:.0f}",
                    f"{size / medians[name] / 1e6:.0f}",
                    f"{medians[limit] / medians[name]:.2f}",
                    f"{medians[tensorflow] / medians[name]:.2f}",
                    "" if peak is None else f"{peak:.2f}",
                ]
            )
        for peer in names[1:]:
            ratio = medians[peer] / medians[ours]
            tell(f"{column}, {size / 1e6:.0f} MB", peer, ratio, better="more")
        aims.check(
            f"{column}, x tf.train.Checkpoint",
            medians[tensorflow] / medians[ours],
            "above",
            1,
            unsure=unsteady(times[column][limit]),
        )
    cold, plain = (times[_COLUMNS[2]][name] for name in (ours, limit))
    aims.check(
        f"{_COLUMNS[2]}, the slowest, x a plain read",
        statistics.median(plain) / max(cold),
        "at least",
        COLD,
        unsure=unsteady(plain),
    )
    if peaks:
        aims.check("peak memory of a save, x state", peaks[ours]["save"], "below", 0.4)
        aims.check("peak memory of a restore, x state", peaks[ours]["restore, cached"], "below", 1.4)
    assert ours != tensorflow
    header = ["", "ms", "MB/s", "x limit", "x tf.train.Checkpoint", "peak memory, x state"]
    return table(header, rows)


def peaks_of(names: Sequence[str], megabytes: int) -> dict[str, dict[str, float]]:
    """Returns the peak of the memory that each takes beyond the model's own, in sizes of the state."""
    found = {}
    for name in names:
        command = [sys.executable, __file__, "--megabytes", str(megabytes), "--peak-of", name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
    return found


def print_peaks(checkpointer: Checkpointer, size: int, root: Path) -> None:
    """Prints the peaks of one checkpointer as JSON, in sizes of the state."""
    folder = root / "one"
    checkpointer.prepare(folder)
    save = peak_of(lambda: checkpointer.save(folder))
    restore = peak_of(lambda: checkpointer.restore(folder))
    print(json.dumps({_COLUMNS[0]: save / size, _COLUMNS[1]: restore / size}))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gb", type=float, default=0.5, help="size of the state in GB (10^9 bytes)")
    parser.add_argument("--megabytes", type=int, help="the same in MB, instead")
    parser.add_argument("--repetitions", type=int, default=5, help="of each, after one that warms up")
    parser.add_argument(
        "--writers", type=int, nargs="*", default=[1, 2, 4], help="processes that share a save"
    )
    parser.add_argument("--directory", type=Path, help="where to write; a temporary directory by default")
    parser.add_argument("--no-peaks", action="store_true", help="leave out the processes that measure memory")
    parser.add_argument("--no-aims", action="store_true", help="for states too small to mean anything")
    parser.add_argument("--peak-of", help="measure the memory of one in this process, and print JSON")
    options = parser.parse_args(arguments)
    megabytes = options.megabytes or round(options.gb * 1000)
    if megabytes < 1 or options.repetitions < 1:
        parser.error("Expected at least 1 MB and 1 repetition.")
    logging.getLogger("keras_preempt").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(dir=options.directory) as temporary:
        root = Path(temporary)
        model = model_of(megabytes * 1_000_000)
        size = bytes_of(model)
        found = checkpointers(model)
        if options.peak_of:
            print_peaks(next(one for one in found if one.name == options.peak_of), size, root)
            return 0
        began = time.monotonic()
        print(conditions(), flush=True)
        times = measure(found, root, options.repetitions, size)
        names = [checkpointer.name for checkpointer in found]
        # The processes need the memory, and their figures must not come out of each other's way.
        del model, found
        peaks = {} if options.no_peaks else peaks_of(names, megabytes)
        shares = share_out(root, megabytes, options.writers, options.repetitions)
        print(
            f"{size / 1e6:.0f} MB of state, {options.repetitions} repetitions, medians, "
            f"{time.monotonic() - began:.0f} s in all\n"
        )
    aims = Aims(apply=not options.no_aims)
    print(report(times, size, peaks, aims))
    if not any(name.startswith("Orbax") for name in names):
        print("\nOrbax is not installed and was left out.")
    if shares:
        print(f"\n{shares}")
    return aims.report()


if __name__ == "__main__":
    sys.exit(main())
