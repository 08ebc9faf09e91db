"""Worker scripts without TensorFlow, for tests of the launcher; undisturbed training, to compare with."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.training import Training, Undisturbed

_PRELUDE = """
import json, os, signal, sys, threading, time
index = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]
incarnation = int(os.environ.get("KERAS_PREEMPT_LAUNCHER_INCARNATION", 0))
def status(**fields):
    path = os.path.join(os.environ["KERAS_PREEMPT_STATUS_DIR"], f"worker-{index}.json")
    with open(path, "w") as file:
        json.dump(fields, file)
def until_terminated(timeout=60.0):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGTERM, lambda *arguments: None)
    print("listening", flush=True)
    import select
    assert select.select([reader], [], [], timeout)[0], "no signal came"
"""


@pytest.fixture
def worker_script(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a worker's script that knows its index, its incarnation and how to leave a status."""

    def write(body: str) -> Path:
        path = tmp_path / "worker.py"
        path.write_text(_PRELUDE + body)
        return path

    return write


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Gives the job for (workers, *args) that nothing happened to; each is run once."""
    done: dict[tuple[object, ...], Training] = {}
    locks: defaultdict[tuple[object, ...], threading.Lock] = defaultdict(threading.Lock)

    def get(workers: int, *args: str) -> Training:
        key = (workers, *args)
        with locks[key]:
            if key not in done:
                training = Training(tmp_path_factory.mktemp("undisturbed"), workers, args)
                training.finish()
                done[key] = training
            return done[key]

    return get
