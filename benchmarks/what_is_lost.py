"""What one preemption costs: steps, samples and bits, for each way to save a training of Keras or TensorFlow.

The same model is trained for two epochs of 40 steps on one device. In the 54th step, the 14th of the second epoch, the
process gets SIGTERM. Then it is started again, and the result is compared with that of a process that nothing happened
to. All figures are counts, so that they are the same on every machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from figures import table

SCRIPT = Path(__file__).parent / "scripts" / "interrupted_job.py"
STEPS, SAMPLES, TOTAL = 40, 640, 80  # steps and samples of an epoch, steps of both
PREEMPTED_AT = 53  # updates: in the step after these

#: Contestants: what each is called, and the undisturbed run that it is compared with.
CONTESTANTS = {
    "ours": ("PreemptionCallback", "alone"),
    "backup": ("BackupAndRestore", "alone"),
    "backup_in_epoch": ("BackupAndRestore, save_freq=10", "alone"),
    "orbax": ("OrbaxCheckpoint of Keras", "alone"),
    "handler": ("TensorFlow's handler", "loop_alone"),
    "handler_with_iterator": ("the same, iterator in its checkpoint", "loop_alone"),
}

_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "KERAS_PREEMPT_PLATFORM": "generic",
}
_TIMEOUT = 300.0  # seconds for one start

Step = tuple[int, tuple[int, ...]]
"""The number of updates before a step, and the samples that it gets."""


@dataclass(frozen=True)
class Loss:
    """What a preemption has cost.

    Attributes:
        status: The exit status of the process that got the signal, as a shell tells it.
        run_again: Steps that were begun in all, beyond those of an undisturbed training. The one in which the signal
            came is among them, if the signal has ended the process.
        updates: Updates that the final model has had.
        twice: Samples of the second epoch that it was trained on more than once in that epoch.
        never: Samples of the second epoch that it was not trained on in that epoch.
        identical: Whether every bit of the model and the optimizer is that of the undisturbed training.
    """

    status: int
    run_again: int
    updates: int
    twice: int
    never: int
    identical: bool


def start(folder: Path, contestant: str, wait_at: int | None = None) -> int:
    """Starts the job once, sends it SIGTERM where it waits, and returns its exit status as a shell tells it.

    Raises:
        RuntimeError: It has not come to where it waits, or to its end.
    """
    command = [sys.executable, str(SCRIPT), str(folder), contestant]
    command += [] if wait_at is None else [str(wait_at)]
    said: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **_ENVIRONMENT},
    ) as process:
        assert process.stdout is not None
        if wait_at is not None:
            for line in process.stdout:
                said.append(line)
                if line == "READY\n":
                    process.send_signal(signal.SIGTERM)
                    break
        said.append(process.communicate("go on\n", timeout=_TIMEOUT)[0])
    status = process.returncode
    if (status != 0) if wait_at is None else ("READY\n" not in said):
        where = "its end" if wait_at is None else f"step {wait_at}"
        raise RuntimeError(f"{contestant} did not come to {where}: exit status {status}.\n{''.join(said)}")
    return status if status >= 0 else 128 - status


def steps_of(folder: Path) -> list[list[Step]]:
    """Returns the steps of each start."""
    files = sorted(folder.glob("steps-*.jsonl"))
    return [
        [(each["updates"], tuple(each["samples"])) for each in map(json.loads, file.read_text().splitlines())]
        for file in files
    ]


def in_the_model(starts: Sequence[Sequence[Step]]) -> list[Step]:
    """Returns the steps that the final model consists of: without those that a later start has run anew."""
    kept: list[Step] = []
    for steps in starts:
        kept = [each for each in kept if each[0] < steps[0][0]] + list(steps)
    return kept


def loss(folder: Path, status: int, undisturbed: Path) -> Loss:
    """Compares a training that was preempted with one that was not."""
    starts = steps_of(folder)
    model = in_the_model(starts)
    seen = Counter(sample for _, samples in model[STEPS:] for sample in samples)
    return Loss(
        status,
        sum(map(len, starts)) - TOTAL,
        len(model),
        sum(count > 1 for count in seen.values()),
        SAMPLES - len(seen),
        (folder / "end.npz").read_bytes() == (undisturbed / "end.npz").read_bytes(),
    )


def measure(contestants: Sequence[str]) -> dict[str, Loss]:
    """Trains, preempts and starts again each contestant."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        for contestant in contestants:
            peer = CONTESTANTS[contestant][1]
            for folder in (where / peer, where / contestant):
                folder.mkdir(exist_ok=True)
            if not (where / peer / "end.npz").exists():
                start(where / peer, peer)
            status = start(where / contestant, contestant, PREEMPTED_AT)
            start(where / contestant, contestant)
            found[contestant] = loss(where / contestant, status, where / peer)
            print(f"{CONTESTANTS[contestant][0]}: {found[contestant]}", file=sys.stderr, flush=True)
    return found


def report(found: dict[str, Loss]) -> str:
    """Returns the table."""
    counts = ["steps run again", "updates", "twice", "never", "exit"]
    header = ["SIGTERM in the 54th of 80 steps", "same bits", *counts]
    rows = []
    for name, one in found.items():
        figures = (one.run_again, one.updates, one.twice, one.never, one.status)
        rows.append([CONTESTANTS[name][0], "yes" if one.identical else "no", *map(str, figures)])
    return table(header, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(CONTESTANTS), help="measure these alone")
    options = parser.parse_args(arguments)
    chosen = options.only or list(CONTESTANTS)
    installed = importlib.util.find_spec("orbax") is not None
    if not installed and "orbax" in chosen:
        chosen = [name for name in chosen if name != "orbax"]
    packages = ["keras", "tensorflow", *(["orbax-checkpoint"] if installed else [])]
    print(", ".join(f"{name} {metadata.version(name)}" for name in packages), flush=True)
    found = measure(chosen)
    print(f"updates: of the final model; twice, never: samples of the {SAMPLES} of the second epoch\n")
    print(report(found))
    if not installed:
        print("\nOrbax is not installed and was left out.")
    ours = found.get("ours")
    return int(ours is not None and ours != Loss(75, 0, TOTAL, 0, 0, True))


if __name__ == "__main__":
    sys.exit(main())
