"""Worker scripts without TensorFlow, for tests of the launcher; fits that nothing happens to, to compare with."""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keras_preempt.cluster import standby
from tests.cluster.bucket import bucket_of_this_process
from tests.cluster.left_behind import is_given_back
from tests.cluster.standbys import Installation
from tests.cluster.training import Training, Undisturbed

if TYPE_CHECKING:
    from keras_preempt.testing import FakeGcs
    from tests.cluster.noticed_fit import Model, NoticedFit, Outcome

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
    """Gives the job for (workers, *args) that nothing happened to; each is run once for all processes of pytest."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    def get(workers: int, *args: str) -> Training:
        place = folder / " ".join(["undisturbed", str(workers), *args])
        place.mkdir(exist_ok=True)
        kept = place / "kept"
        with (place / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                training = Training(place, workers, args)
                training.finish()
                kept.write_bytes(pickle.dumps(training))
        found: Training = pickle.loads(kept.read_bytes())
        return found

    return get


@pytest.fixture
def gcs(tmp_path: Path) -> Iterator[FakeGcs]:
    with bucket_of_this_process(tmp_path) as server:
        yield server


# -- Fits in this process: see noticed_fit.py, which is imported late, since most tests need no TensorFlow here. ------


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks for no cloud."""
    monkeypatch.setenv("KERAS_PREEMPT_PLATFORM", "generic")


@pytest.fixture
def everything_is_given_back() -> Iterator[None]:
    """Makes sure that no signal handler and no thread stays behind."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    assert [number for number, earlier in handlers.items() if not is_given_back(number, earlier)] == []
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("keras_preempt")]
    assert left == []


@pytest.fixture(scope="module")
def model() -> Model:
    """A model that is compiled once for all tests of a file."""
    from tests.cluster.noticed_fit import Model

    return Model()


@pytest.fixture(scope="module")
def undisturbed_fit(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What a fit of that model comes to without the callback."""
    from tests.cluster.noticed_fit import NoticedFit

    return NoticedFit(tmp_path_factory.mktemp("undisturbed"), model=model).fit(plain=True)


@pytest.fixture
def job(tmp_path: Path, model: Model) -> NoticedFit:
    """A run of that model in a directory of its own."""
    from tests.cluster.noticed_fit import NoticedFit

    return NoticedFit(tmp_path / "run", model=model)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    """A virtual environment for scripts with standbys, which wait for no idle machine: other tests keep it busy."""
    monkeypatch.setattr(standby, "_BUSY_SECONDS", 0.0)
    return Installation(tmp_path)
