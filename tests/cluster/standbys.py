"""Scripts that are restarted with standbys and without, in an environment with small installed packages of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_preempt.cluster import RestartPolicy, Supervisor
from keras_preempt.cluster.outcome import SupervisorReport
from keras_preempt.cluster.standby import ImportNotes
from keras_preempt.cluster.worker import LEFT_BEHIND

REPOSITORY = Path(__file__).parents[2]

_TRAINER = """
import json, os, signal, sys, time

imported = time.monotonic()  # In a standby this is before its start.

def train(restarts=1):
    from keras_preempt.report.status import Status
    worker = os.environ.get("KERAS_PREEMPT_WORKER", "0")
    with open(os.path.join(os.environ["NOTES"], f"{incarnation_now()}-{worker}"), "w") as file:
        file.write(str(imported))
    Status().began_training()
    sys.stdout.flush()
    if incarnation_now() >= restarts:
        return
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    print("trains", flush=True)
    import select
    assert select.select([read], [], [], 60)[0], "no signal came"
    sys.exit(75)

def incarnation_now():
    return int(os.environ.get("KERAS_PREEMPT_LAUNCHER_INCARNATION", 0))
"""


@dataclass
class Run:
    """What came of a run.

    Attributes:
        report: The supervisor's.
        output: The lines of each worker in each of its starts, by (incarnation, worker).
        said: What the launcher said.
        standbys: The (incarnation, worker) that were standbys before.
    """

    report: SupervisorReport
    output: dict[tuple[int, int], list[str]]
    said: list[str]
    standbys: set[tuple[int, int]] = field(default_factory=set)


class Installation:
    """A virtual environment whose packages are those of a test, with this package beside them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
        self.python = str(folder / "venv/bin/python")
        (self.packages,) = (folder / "venv/lib").glob("python*/site-packages")
        (self.packages / "keras_preempt.pth").write_text(f"{REPOSITORY}\n")
        self.install("trainer", _TRAINER)

    def install(self, name: str, code: str) -> Path:
        """Writes a module, or with a name such as "package/__init__" one of a package; returns its file."""
        file = self.packages / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(textwrap.dedent(code))
        return file

    def script(self, code: str, name: str = "train.py") -> str:
        file = self.folder / name
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(textwrap.dedent(code))
        return str(file)

    def run(
        self,
        command: list[str],
        *,
        standby: int,
        known: ImportNotes | None = None,
        workers: int = 1,
        restarts: int = 1,
        wait: bool = True,
        before: Callable[[], object] = lambda: None,
        environment: dict[str, str | None] | None = None,
    ) -> Run:
        """Trains, and preempts it in each start but the last, when there are as many standbys as workers if it can.

        `before` is called before each preemption; `wait` says whether to wait for standbys.
        """
        notes = self.folder / f"notes-{len(list(self.folder.glob('notes-*')))}"
        notes.mkdir()
        output: dict[tuple[int, int], list[str]] = {}
        said: list[str] = []
        number = 0
        trains, changed = 0, threading.Condition()

        def log(index: int, line: str) -> None:
            nonlocal trains
            if line.startswith(LEFT_BEHIND):  # Ends with the number of a process.
                return
            output.setdefault((number, index), []).append(line)
            if line == "trains":
                with changed:
                    trains += 1
                    changed.notify_all()

        def variables(incarnation: int) -> dict[str, str | None]:
            nonlocal number, trains
            number, trains = incarnation, 0
            return {"NOTES": str(notes), "PYTHONDONTWRITEBYTECODE": None, **(environment or {})}

        supervisor = Supervisor(
            workers,
            command,
            policy=RestartPolicy(max_restarts_without_progress=restarts),
            say=said.append,
            log=log,
            environment=variables,
            cwd=self.folder,
            standby=standby,
            notes=known,
        )
        over = threading.Event()

        def preempt() -> None:
            for incarnation in range(restarts):
                with changed:
                    changed.wait_for(
                        lambda at=incarnation: over.is_set() or (number == at and trains == workers), 60
                    )
                while standby and wait and supervisor.standbys < workers and not over.wait(0.02):
                    if any("no standby" in line for line in said):
                        break
                before()
                for index in range(workers):
                    supervisor.send(index, signal.SIGTERM)

        preempting = threading.Thread(target=preempt)
        preempting.start()
        try:
            report = supervisor.run()
        finally:
            over.set()
            with changed:
                changed.notify_all()
            preempting.join()
        run = Run(report, output, said)
        for incarnation in range(1, len(report.incarnations)):
            for worker in range(workers):
                imported = notes / f"{incarnation}-{worker}"
                ended = max(exit.at for exit in report.incarnations[incarnation - 1].exits)
                if imported.exists() and float(imported.read_text()) < ended:
                    run.standbys.add((incarnation, worker))
        return run


ALL = {(1, 0)}
"""The standbys of one worker that was preempted once."""

LOUD = """
import atexit, os, sys, warnings
print("loud is imported")
print("loud warns", file=sys.stderr, flush=True)
os.write(1, b"loud writes in C\\n")
backend = os.environ.get("LOUD_BACKEND", "none")
os.environ["LOUD_WAS_HERE"] = "yes"
warnings.filterwarnings("ignore", message="loud")
atexit.register(print, "loud's exit handler")
"""
"""An installed module whose import does everything that an import can do."""


def compared(installed: Installation, command: list[str], **options: Any) -> tuple[Run, Run]:
    """Runs a command without standbys and with them, and makes sure that it printed the same."""
    plain = installed.run(command, standby=False, **options)
    run = installed.run(command, standby=True, **options)
    assert plain.report.exit_code == run.report.exit_code == 0, (plain, run)
    outcomes = [[each.verdict.outcome for each in one.report.incarnations] for one in (plain, run)]
    assert outcomes[0] == outcomes[1]
    for start, lines in plain.output.items():
        assert run.output[start] == lines
    assert run.output.keys() == plain.output.keys()
    return plain, run
