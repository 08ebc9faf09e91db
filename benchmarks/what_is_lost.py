"""What one preemption costs: steps, samples and bits, for each way to save a training of Keras, TensorFlow and peers.

The same problem is trained for two epochs of 40 steps on one device. In the 54th step, the 14th of the second epoch,
the process gets its signal. Then it is started again, and the result is compared, as `keras-preempt drill --state`
does, with that of a process that nothing happened to. These figures are counts, so that they are the same on every
machine; seconds are in a table of their own.

With --peers other frameworks are measured too, each in an environment of its own that is made here from the
requirements in peers/, and as its own documentation has it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from environments import CannotInstall, python_of, versions_of
from figures import conditions, table

from keras_preempt.cli.drill.state_files import compare_files

SCRIPTS = Path(__file__).parent / "scripts"
STEPS, SAMPLES, TOTAL = 40, 640, 80  # steps and samples of an epoch, steps of both
PREEMPTED_AT = 53  # updates: in the step after these


@dataclass(frozen=True)
class Contestant:
    """One way to save a training.

    Attributes:
        title: What it is called.
        way: What its script calls it.
        alone: What its script calls the undisturbed run that it is compared with.
        peer: The peer whose environment it needs; empty for that of this program.
        number: The signal that is its notice.
    """

    title: str
    way: str
    alone: str = "alone"
    peer: str = ""
    number: signal.Signals = signal.SIGTERM

    @property
    def script(self) -> Path:
        """What is run."""
        return SCRIPTS / (f"peer_{self.peer}.py" if self.peer else "interrupted_job.py")


CONTESTANTS = {
    "ours": Contestant("PreemptionCallback", "ours"),
    "backup": Contestant("BackupAndRestore", "backup"),
    "backup_in_epoch": Contestant("BackupAndRestore, save_freq=10", "backup_in_epoch"),
    "orbax": Contestant("OrbaxCheckpoint of Keras", "orbax"),
    "handler": Contestant("TensorFlow's handler", "handler", "loop_alone"),
    "handler_with_iterator": Contestant(
        "the same, iterator in its checkpoint", "handler_with_iterator", "loop_alone"
    ),
}
"""Those that run where this package does."""

PEERS = {
    "lightning_slurm": Contestant(
        "Lightning, Slurm's signal", "slurm", peer="lightning", number=signal.SIGUSR1
    ),
    "lightning_exception": Contestant("Lightning, save_on_exception", "exception", peer="lightning"),
    "lightning_stateful": Contestant(
        "the same, StatefulDataLoader", "stateful", "stateful_alone", "lightning"
    ),
    "trainer_skip": Contestant("HF Trainer, enable_jit_checkpoint", "skip", peer="trainer"),
    "trainer_ignore_skip": Contestant("the same, ignore_data_skip", "ignore_skip", peer="trainer"),
    "accelerate_stateful": Contestant(
        "Accelerate, use_stateful_dataloader", "stateful", "stateful_alone", "accelerate"
    ),
    "accelerate_given": Contestant(
        "the same, given a StatefulDataLoader", "given", "given_alone", "accelerate"
    ),
    "accelerate_skip": Contestant("Accelerate, skip_first_batches", "skip", "skip_alone", "accelerate"),
    "orbax_state": Contestant("Orbax, JAX loop", "state", peer="orbax"),
    "orbax_grain": Contestant("the same, Grain's iterator in it", "with_grain", peer="orbax"),
    "composer_epoch": Contestant("Composer, autoresume", "epoch", peer="composer"),
    "composer_batches": Contestant("the same, save_interval 10ba", "batches", peer="composer"),
    "composer_sampler": Contestant("the same, its get_sampler", "sampler", "sampler_alone", "composer"),
    "ray_driver": Contestant("Ray Train, the driver", "driver", peer="ray"),
    "ray_node": Contestant("Ray Train, get_preemption_info", "node", peer="ray"),
}
"""Those with an environment of their own."""

ALL = {**CONTESTANTS, **PEERS}

_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "JAX_PLATFORMS": "cpu",
    "KERAS_PREEMPT_PLATFORM": "generic",
    "RAY_USAGE_STATS_ENABLED": "0",
}
_TIMEOUT = 900.0  # seconds for one start

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


@dataclass(frozen=True)
class Seconds:
    """How long it took, in seconds.

    Attributes:
        to_exit: From the notice until the process had ended.
        to_step: From the second start of the process to its first step.
        to_first: The same of the first start, which had nothing to restore.
    """

    to_exit: float
    to_step: float
    to_first: float


@dataclass(frozen=True)
class Started:
    """One start of a job: its exit status as a shell tells it, and when it began, got its signal and ended."""

    status: int
    began: float
    signalled: float
    ended: float


def start(folder: Path, contestant: Contestant, way: str, python: str, wait_at: int | None = None) -> Started:
    """Starts the job once, and sends it the signal where it waits; what it prints goes to a file of the folder.

    Raises:
        RuntimeError: It has not come to where it waits, or to its end.
    """
    command = [python, str(contestant.script), str(folder), way]
    command += [] if wait_at is None else [str(wait_at)]
    said: list[str] = []
    began = signalled = time.time()
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
                    signalled = time.time()
                    process.send_signal(contestant.number)
                    break
        said.append(process.communicate("go on\n", timeout=_TIMEOUT)[0])
    ended = time.time()
    (folder / f"output-{len(list(folder.glob('output-*')))}.txt").write_text("".join(said))
    status = process.returncode
    if (status != 0) if wait_at is None else ("READY\n" not in said):
        where = "its end" if wait_at is None else f"step {wait_at}"
        raise RuntimeError(
            f"{contestant.title} did not come to {where}: exit status {status}.\n{''.join(said)}"
        )
    return Started(status if status >= 0 else 128 - status, began, signalled, ended)


def notes_of(folder: Path) -> list[list[dict[str, float]]]:
    """Returns what each start has noted of its steps."""
    return [
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in sorted(folder.glob("steps-*.jsonl"))
    ]


def steps_of(folder: Path) -> list[list[Step]]:
    """Returns the steps of each start."""
    return [[(each["updates"], tuple(each["samples"])) for each in steps] for steps in notes_of(folder)]


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
        compare_files(*({"end": each / "end.npz"} for each in (undisturbed, folder))).identical,
    )


def measure(
    names: Sequence[str], where: Path, pythons: dict[str, str], repeat: int
) -> tuple[dict[str, Loss], dict[str, list[Seconds]]]:
    """Trains, preempts and starts again each contestant, as often as told; keeps everything in a folder.

    Raises:
        RuntimeError: One did not come to its end, or its counts were others the next time.
    """
    found: dict[str, Loss] = {}
    seconds: dict[str, list[Seconds]] = {}
    for turn in range(repeat):
        for name in names:
            folder = where / (f"{name}-{turn}" if turn else name)
            result = folder / "measured.json"
            if not result.exists():
                counts, took = _measured(ALL[name], folder, pythons[ALL[name].peer])
                result.write_text(json.dumps([asdict(counts), asdict(took)]))
            kept = json.loads(result.read_text())
            counts, took = Loss(**kept[0]), Seconds(**kept[1])
            if found.setdefault(name, counts) != counts:
                raise RuntimeError(f"{ALL[name].title}: {found[name]}, the next time {counts}")
            seconds.setdefault(name, []).append(took)
            print(f"{ALL[name].title}: {counts}, {took}", file=sys.stderr, flush=True)
    return found, seconds


def _measured(contestant: Contestant, folder: Path, python: str) -> tuple[Loss, Seconds]:
    undisturbed = folder.parent / f"{contestant.peer or 'here'}-{contestant.alone}"
    if not (undisturbed / "end.npz").exists():
        start(_emptied(undisturbed), contestant, contestant.alone, python)
    first = start(_emptied(folder), contestant, contestant.way, python, PREEMPTED_AT)
    second = start(folder, contestant, contestant.way, python)
    check_repeats(steps_of(undisturbed)[0], steps_of(folder)[0], contestant.title)
    begun, again = (notes[0]["at"] for notes in notes_of(folder)[:2])
    took = Seconds(first.ended - first.signalled, again - second.began, begun - first.began)
    return loss(folder, first.status, undisturbed), took


def check_repeats(undisturbed: Sequence[Step], first: Sequence[Step], title: str) -> None:
    """Makes sure that two starts train on the same samples until the signal: otherwise no bits can be compared.

    Raises:
        RuntimeError: They do not.
    """
    for one, other in zip(undisturbed[: PREEMPTED_AT + 1], first, strict=False):
        if one != other:
            raise RuntimeError(
                f"{title} does not repeat itself: step {one[0]} has other samples in another start"
            )


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def report(found: dict[str, Loss]) -> str:
    """Returns the table of the counts."""
    counts = ["steps run again", "updates", "twice", "never", "exit"]
    header = ["SIGTERM in the 54th of 80 steps", "same bits", *counts]
    rows = []
    for name, one in found.items():
        figures = (one.run_again, one.updates, one.twice, one.never, one.status)
        rows.append([ALL[name].title, "yes" if one.identical else "no", *map(str, figures)])
    return table(header, rows)


def report_seconds(seconds: dict[str, list[Seconds]]) -> str:
    """Returns the table of the seconds: medians, and how they compare with those of a start that restores nothing."""
    rows = []
    for name, each in seconds.items():
        to_exit, to_step, to_first = (
            statistics.median(getattr(one, what) for one in each)
            for what in ("to_exit", "to_step", "to_first")
        )
        ratio = f"{to_step / to_first:.2f}"
        rows.append(
            [f"seconds: {ALL[name].title}", f"{to_exit:.2f}", f"{to_step:.2f}", f"{to_first:.2f}", ratio]
        )
    header = ["medians", "notice -> exit", "start -> next step", "first start -> first step", "ratio"]
    return table(header, rows)


def environments(
    folder: Path | None, share: Path | None, names: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """Returns the Pythons of those that are asked for, by peer, and what is said of those that are left out."""
    pythons, said = {"": sys.executable}, []
    for peer in dict.fromkeys(ALL[name].peer for name in names if ALL[name].peer):
        if folder is None:
            continue
        try:
            pythons[peer] = python_of(peer, folder, share)
        except CannotInstall as error:
            said.append(f"Left out: {error}")
    return pythons, said


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(ALL), help="measure these alone")
    parser.add_argument(
        "--peers", type=Path, metavar="DIR", help="measure the peers, with their environments in DIR"
    )
    parser.add_argument(
        "--share", type=Path, metavar="SITE_PACKAGES", help="packages that these need not install once more"
    )
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="how often, for medians of the seconds"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="a new folder for all that was noted and printed"
    )
    options = parser.parse_args(arguments)
    chosen = options.only or list(ALL)
    pythons, said = environments(options.peers, options.share, chosen)
    if options.peers is None:
        said.append("Peers were left out: --peers DIR makes their environments there.")
    installed = importlib.util.find_spec("orbax") is not None
    if not installed and "orbax" in chosen:
        chosen = [name for name in chosen if name != "orbax"]
        said.append("Orbax is not installed and was left out.")
    chosen = [name for name in chosen if ALL[name].peer in pythons]
    packages = ["keras", "tensorflow", *(["orbax-checkpoint"] if installed else [])]
    print(conditions(*packages), flush=True)
    for peer in pythons:
        if peer:
            print(f"{peer}: {versions_of(peer)}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        where = options.keep or Path(temporary)
        where.mkdir(exist_ok=True)
        found, seconds = measure(chosen, where, pythons, options.repeat)
    print(f"updates: of the final model; twice, never: samples of the {SAMPLES} of the second epoch\n")
    print(report(found))
    print(f"\n{report_seconds(seconds)}")
    if said:
        print("\n" + "\n".join(said))
    ours = found.get("ours")
    return int(ours is not None and ours != Loss(75, 0, TOTAL, 0, 0, True))


if __name__ == "__main__":
    sys.exit(main())
