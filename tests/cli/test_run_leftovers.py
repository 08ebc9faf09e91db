"""No process and no temporary directory outlives ``keras-preempt run``, however it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.launched import Launched

#: Starts children of every kind, which refuse SIGTERM, and names them.
CHILDREN = """
import subprocess
program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
plain = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
session = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
for child in (plain, session):
    child.stdout.readline()
read, write = os.pipe()
if os.fork() == 0:  # A daemon: its parent is gone, and so is its session.
    os.setsid()
    daemon = os.fork()
    if daemon:
        os.write(write, str(daemon).encode())
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()
os.wait()
daemon = int(os.read(read, 20))
(here / "children").write_text(f"{plain.pid} {session.pid} {daemon} {os.getpid()}")
"""


def opened(launched: Launched) -> dict[str, int]:
    """Descriptors of the processes that a worker has named, by which their end can be waited for."""
    opened = [os.pidfd_open(int(pid)) for pid in (launched.folder / "children").read_text().split()]
    return dict(zip(("plain", "session", "daemon", "worker"), opened, strict=True))


def assert_all_end(found: dict[str, int]) -> None:
    for name, descriptor in found.items():
        assert select.select([descriptor], [], [], 30.0)[0], f"the {name} process lives on"
        os.close(descriptor)


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("finished", "{train}; echo over"),
        pytest.param("finished", "exec {train}", marks=pytest.mark.chaos),
        pytest.param("SIGTERM", "{train}; echo over", marks=pytest.mark.chaos),
        ("SIGTERM", "exec {train}"),
        ("SIGKILL", "{train}; echo over"),
        ("SIGKILL", "exec {train}"),
    ],
)
def test_nothing_that_a_worker_has_started_outlives_the_launcher(
    launched: Launched, how: str, line: str
) -> None:
    """What the worker leaves when it ends gets SIGTERM, then SIGKILL; after a SIGKILL of the launcher, SIGKILL."""
    ends = "until_signal(); saved(); os._exit(75)"
    if how == "finished":
        ends = "until_go(); saved(0, finished=True); os._exit(0)"
    process = launched.train(f"{CHILDREN}listen()\n{ends}", line)
    found = opened(launched)
    if how == "SIGKILL":
        process.kill()
        process.wait(timeout=60)
        assert_all_end(found)
        return
    if how == "finished":
        (launched.folder / "go").touch()
        output = launched.ended(process, 0)
    else:
        output = launched.stopped(process)
    assert "left behind" in output
    assert all(select.select([descriptor], [], [], 0.0)[0] for descriptor in found.values()), output
    assert_all_end(found)


def test_a_worker_whose_keeper_is_killed_ends_with_its_children(launched: Launched) -> None:
    body = CHILDREN + "(here / 'keeper').write_text(str(os.getppid())); listen(); until_signal()"
    process = launched.train(body)
    found = opened(launched)
    os.kill(int((launched.folder / "keeper").read_text()), signal.SIGKILL)
    launched.ended(process, 137)
    # Nobody has seen to those that have left the session by then; but to the others.
    for name in ("session", "daemon"):
        signal.pidfd_send_signal(found[name], signal.SIGKILL)
    assert_all_end(found)


def test_no_foreign_process_is_ended(launched: Launched) -> None:
    """A worker may know processes that it has not started."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        process = launched.train(
            "folder = Path(os.environ['KERAS_PREEMPT_STATUS_DIR'])\n"
            # A file that names a process that is not of this worker.
            f"(folder / 'process-0.json').write_text(json.dumps(dict(pid={other.pid}, ticks=None)))\n"
            "(here / 'listening-0').write_text('1'); until_signal(); saved(); sys.exit(75)"
        )
        launched.stopped(process)
        assert other.poll() is None
        other.communicate(b"\n")


def test_files_of_a_killed_launcher_are_removed_at_the_next_start(launched: Launched) -> None:
    process = launched.train("listen()\nuntil_signal()")
    process.kill()
    process.wait(timeout=60)
    (left,) = launched.left()
    Path(launched.temporary, "keras-preempt-notes").mkdir()
    (launched.folder / "listening-0").unlink()
    other = launched.train("listen(); until_signal()")  # One that runs keeps its own.
    names = launched.left()
    assert left not in names
    assert len(names) == 2
    launched.ended(launched.run("true"), 0)
    assert launched.left() == names
    launched.stopped(other, 74)
    assert launched.left() == ["keras-preempt-notes"]
