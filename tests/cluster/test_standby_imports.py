"""A standby of a real script has what its imports cost, and nothing more: no runtime, no device, no file of the run."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from pathlib import Path

import pytest

from keras_preempt.cluster import RestartPolicy, Supervisor
from keras_preempt.cluster import standby as standbys_module

SCRIPT = """
import os, signal, sys
import keras, keras_preempt.callback
if keras.backend.backend() == "tensorflow":
    import tensorflow
from keras_preempt.backend.seam import backend
backend()
from tests.cluster.test_standby_imports import figures
print("imported", *figures("self"), flush=True)
from keras_preempt.report.status import Status
number = os.environ["KERAS_PREEMPT_LAUNCHER_INCARNATION"]
read, write = os.pipe()
os.set_blocking(write, False)
signal.set_wakeup_fd(write)
signal.signal(signal.SIGTERM, lambda *arguments: None)
Status().began_training()
print("trains", flush=True)
if number == "0":
    import select
    assert select.select([read], [], [], 300)[0]
    sys.exit(75)
"""


def figures(pid: str) -> tuple[int, int]:
    """The threads and the megabytes of a process."""
    told = Path(f"/proc/{pid}/status").read_text()
    found = [re.search(rf"^{name}:\s*([0-9]+)", told, re.MULTILINE) for name in ("Threads", "VmRSS")]
    threads, kilobytes = (int(each[1]) for each in found if each is not None)
    return threads, kilobytes >> 10


def opened(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}/fd")
    return sorted(os.readlink(each) for each in folder.iterdir())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_standby_has_only_what_its_imports_cost(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standbys_module, "_BUSY_SECONDS", 0.0)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    root = str(Path(__file__).parents[2])
    lines: list[str] = []
    said: list[str] = []
    trains = threading.Event()

    def log(index: int, line: str) -> None:
        lines.append(line)
        if line == "trains":
            trains.set()

    supervisor = Supervisor(
        1,
        [sys.executable, str(script)],
        policy=RestartPolicy(max_restarts_without_progress=1),
        say=said.append,
        log=log,
        environment=lambda number: {
            "KERAS_BACKEND": backend,
            "PYTHONPATH": root,
            "CUDA_VISIBLE_DEVICES": "-1",
        },
        cwd=tmp_path,
        standby=True,
    )
    seen: list[tuple[tuple[int, int], list[str]]] = []

    def preempt() -> None:
        assert trains.wait(300)
        over = threading.Event()
        for _ in range(3000):
            if supervisor.standbys or said or over.wait(0.1):
                break
        assert supervisor._standbys is not None
        for standby in supervisor._standbys._waiting.values():
            seen.append((figures(str(standby.pid)), opened(standby.pid)))
        supervisor.send(0, signal.SIGTERM)

    preempting = threading.Thread(target=preempt)
    preempting.start()
    report = supervisor.run()
    preempting.join()
    assert report.exit_code == 0, (lines, said)
    first, second = (line.split()[1:] for line in lines if line.startswith("imported"))
    ((threads, megabytes), files) = seen[0]
    assert threads <= int(first[0])
    assert megabytes <= 1.1 * int(first[1])
    assert int(second[0]) == int(first[0])
    others = [file for file in files if not re.match(r"/dev/null|pipe:|socket:|/proc/|/sys/", file)]
    assert others == []
    assert len([file for file in files if file.startswith("socket:")]) == 1
