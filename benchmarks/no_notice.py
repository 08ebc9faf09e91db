"""What a process that is killed without notice costs: steps, seconds and bytes, for each way to save meanwhile.

One fit on one device. Three ways to save: in memory (`memory_every="auto"`), in the directory (`save_every`), and
`BackupAndRestore(save_freq=)` of Keras. The last two save as often as costs what saves in memory may cost, 1 % of the
processor time of training; that interval is measured first, with one that saves often. Then each is killed at random
moments and started again.

- steps lost: those that are run again, or left out;
- seconds to a new step: from SIGKILL until a step is done that was not done before, with the start of Python and Keras;
- read: bytes of tensors from the directory before the first step;
- cost: processor time of a step in a fit with saves over that in one without, both undisturbed, as a median of pairs.

The directory is on local disk and the memory on tmpfs. With a bucket or a network disk the second and third way cost
more, and the first does not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from figures import Aims, conditions, table, tell

SCRIPT = Path(__file__).parent / "scripts" / "no_notice_job.py"
WAYS = {"memory": 'memory_every="auto"', "save_every": "save_every", "backup": "BackupAndRestore(save_freq=)"}
SHARE = 0.01
OFTEN = 20  # steps between two saves, to see what one costs
WARM = 100  # steps before processor time is compared
_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "KERAS_PREEMPT_PLATFORM": "generic",
}


@dataclass(frozen=True)
class Step:
    """A step of one start: its number, when it ended, processor time so far, and what had been read by then."""

    step: int
    at: float
    cpu: float
    read: int


@dataclass(frozen=True)
class Killed:
    """What one death has cost; see the module."""

    steps: int
    seconds: float
    read: int


class Job:
    """One fit that is started and killed; it lives in a folder of its own on tmpfs for memory, on disk for the rest."""

    def __init__(self, way: str, every: int, steps: int, units: int, folder: Path) -> None:
        self._folder = folder
        self._arguments = [way, str(every), str(steps), str(units)]
        memory = Path(tempfile.mkdtemp(dir="/dev/shm"))
        (folder / "memory").symlink_to(memory)
        self._memory = memory

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(SCRIPT), str(self._folder), *self._arguments]
        return subprocess.Popen(command, env={**os.environ, **_ENVIRONMENT}, stdout=subprocess.DEVNULL)

    def starts(self) -> list[list[Step]]:
        files = sorted(self._folder.glob("steps-*"), key=lambda file: int(file.stem.partition("-")[2]))
        return [_steps(file) for file in files]

    def await_step(self, process: subprocess.Popen[bytes], number: int, start: int) -> None:
        """Waits until a start has done so many steps."""
        limit = time.monotonic() + 600
        while len(starts := self.starts()) <= start or len(starts[start]) < number:
            if process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f"{self._arguments} has not come to its {number}th step")
            time.sleep(0.02)

    def close(self) -> None:
        shutil.rmtree(self._memory, ignore_errors=True)


def _steps(file: Path) -> list[Step]:
    lines = file.read_text().split("\n")[:-1]
    return [Step(**json.loads(line)) for line in lines]


def cost_of_step(way: str, every: int, steps: int, units: int) -> float:
    """Returns the processor time of a step of an undisturbed fit, in seconds."""
    with tempfile.TemporaryDirectory() as name:
        job = Job(way, every, steps, units, Path(name))
        try:
            if job.start().wait(1200) != 0:
                raise RuntimeError(f"{way} has failed")
            ((*_, last),) = job.starts()
            first = job.starts()[0][WARM]
            return (last.cpu - first.cpu) / (last.step - first.step)
        finally:
            job.close()


def killed(way: str, every: int, steps: int, units: int, after: int) -> Killed:
    """Kills a fit after so many steps, starts it again, and returns what that has cost."""
    with tempfile.TemporaryDirectory() as name:
        job = Job(way, every, steps, units, Path(name))
        try:
            process = job.start()
            job.await_step(process, after, 0)
            at = time.time()
            process.send_signal(signal.SIGKILL)
            process.wait()
            done = job.starts()[0][-1].step
            process = job.start()
            job.await_step(process, 1, 1)
            first = job.starts()[1][0]
            # BackupAndRestore counts anew from its checkpoint, as ours does.
            job.await_step(process, max(1, done - first.step + 2), 1)
            process.kill()
            process.wait()
            new = next(step for step in job.starts()[1] if step.step > done)
            return Killed(abs(done + 1 - first.step), new.at - at, first.read)
        finally:
            job.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=8, help="deaths of each way")
    parser.add_argument("--pairs", type=int, default=3, help="undisturbed runs of each way")
    parser.add_argument(
        "--steps", type=int, default=2500, help="of each undisturbed run, and before a death at most"
    )
    parser.add_argument("--units", type=int, default=1024, help="of two dense layers: the size of the model")
    parser.add_argument("--quick", action="store_true", help="one short run of each way, without aims")
    options = parser.parse_args(arguments)
    if options.quick:
        options.runs, options.pairs, options.steps, options.units = 1, 1, 800, 128
    aims = Aims(apply=not options.quick)
    print(conditions(), flush=True)
    size = options.steps, options.units
    every = {"memory": 1}
    for way in ("save_every", "backup"):
        # In turns, since the speed of a shared machine drifts.
        ratios = [
            cost_of_step(way, OFTEN, *size) / cost_of_step("plain", 1, *size) for _ in range(options.pairs)
        ]
        every[way] = max(OFTEN, round((statistics.median(ratios) - 1) * OFTEN / SHARE))
    plain = cost_of_step("plain", 1, *size)
    costs: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(options.pairs):
        for way in WAYS:
            costs[way].append(cost_of_step(way, every[way], *size) / cost_of_step("plain", 1, *size))
    generator = random.Random(1)
    results: dict[str, list[Killed]] = {way: [] for way in WAYS}
    for _ in range(options.runs):
        after = generator.randrange(options.steps // 2, options.steps - 200)
        for way in WAYS:
            results[way].append(killed(way, every[way], *size, after))
    rows = []
    for way, name in WAYS.items():
        deaths = results[way]
        median = statistics.median
        rows.append(
            [
                name,
                "auto" if way == "memory" else f"{every[way]} steps",
                f"{median(each.steps for each in deaths):.0f}",
                str(max(each.steps for each in deaths)),
                f"{median(each.seconds for each in deaths):.1f}",
                f"{median(each.read for each in deaths) / 1e6:.1f}",
                f"{median(costs[way]):.3f}",
            ]
        )
    header = [
        "killed at a random step",
        "every",
        "steps lost",
        "at most",
        "s to a new step",
        "MB read",
        "cost",
    ]
    print(
        f"\n{options.runs} deaths and {options.pairs} undisturbed runs of each, {plain * 1e3:.2f} ms a step\n"
    )
    print(table(header, rows), flush=True)
    ours = statistics.median(each.steps for each in results["memory"])
    for way in ("save_every", "backup"):
        theirs = statistics.median(each.steps for each in results[way])
        tell("steps lost with saves in memory", WAYS[way], ours / max(theirs, 1.0), better="less")
    cost = statistics.median(costs["memory"])
    aims.check("processor time with saves in memory, over that without", cost, "at most", 1.0 + SHARE)
    return aims.report()


if __name__ == "__main__":
    sys.exit(main())
