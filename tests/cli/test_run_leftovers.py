"""No process and no temporary directory outlives ``keras-preempt run``, however it ends."""

from __future__ import annotations

import os
import select
import shlex
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.launched import Launched, launched

__all__ = ["launched"]

PYTHON = shlex.quote(sys.executable)

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


def opened(launched: Launched, process: object) -> dict[str, int]:
    """Descriptors of the processes that a worker has named, by which their end can be waited for."""
    names = ("plain", "session", "daemon", "worker")
    path = launched.folder / "children"
    launched.trace("listening-0", process)  # type: ignore[arg-type]
    return dict(zip(names, (os.pidfd_open(int(pid)) for pid in path.read_text().split()), strict=True))


def assert_all_end(found: dict[str, int]) -> None:
    for name, descriptor in found.items():
        assert select.select([descriptor], [], [], 30.0)[0], f"the {name} process lives on"
        os.close(descriptor)


@pytest.mark.parametrize("shell", [False, True])
@pytest.mark.parametrize("how", ["finished", "SIGTERM", "SIGKILL"])
def test_nothing_that_a_worker_has_started_outlives_the_launcher(
    launched: Launched, how: str, shell: bool
) -> None:
    """What the worker leaves when it ends gets SIGTERM, then SIGKILL; after a SIGKILL of the launcher, SIGKILL."""
    script = launched.script(
        CHILDREN + "listen()\n"
        "if sys.argv[1] == 'finished':\n"
        "    while not (here / 'go').exists(): select.select([], [], [], 0.01)\n"
        "    saved(0, finished=True); os._exit(0)\n"
        "until_signal(); saved(); os._exit(75)"
    )
    line = f"{PYTHON} {shlex.quote(script)} {how}; echo over"
    command = ["sh", "-c", line] if shell else [sys.executable, script, how]
    process = launched.run(*command)
    found = opened(launched, process)
    if how == "finished":
        (launched.folder / "go").touch()
    else:
        process.send_signal(signal.Signals[how])
    if how == "SIGKILL":
        process.wait(timeout=60)
        assert_all_end(found)
        return
    output, _ = process.communicate(timeout=60)
    assert process.returncode == (0 if how == "finished" else 75), output
    assert "left behind" in output
    assert all(select.select([descriptor], [], [], 0.0)[0] for descriptor in found.values()), output
    assert_all_end(found)


def test_a_worker_whose_keeper_is_killed_ends_with_its_children(launched: Launched) -> None:
    script = launched.script(CHILDREN + "print('keeper', os.getppid()); listen(); until_signal()")
    process = launched.run(sys.executable, script)
    assert process.stdout is not None
    keeper = next(int(line.split()[2]) for line in process.stdout if "keeper" in line)
    found = opened(launched, process)
    os.kill(keeper, signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 137, output
    # Nobody has seen to those that have left the session by then; but to the others.
    for name in ("session", "daemon"):
        signal.pidfd_send_signal(found[name], signal.SIGKILL)
    assert_all_end(found)


def test_no_foreign_process_is_ended(launched: Launched) -> None:
    """A worker may know processes that it has not started."""
    import subprocess

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        script = launched.script(
            "(here / 'x').touch()\n"
            "folder = Path(os.environ['KERAS_PREEMPT_STATUS_DIR'])\n"
            # A file that names a process that is not of this worker.
            f"(folder / 'process-0.json').write_text(json.dumps(dict(pid={other.pid}, ticks=None)))\n"
            "(here / 'listening-0').write_text('1'); until_signal(); saved(); sys.exit(75)"
        )
        process = launched.run(sys.executable, script)
        launched.trace("listening-0", process)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 75, output
        assert other.poll() is None
        other.communicate(b"\n")


def test_files_of_a_killed_launcher_are_removed_at_the_next_start(launched: Launched) -> None:
    script = launched.script("listen()\nuntil_signal()")
    process = launched.run(sys.executable, script)
    launched.trace("listening-0", process)
    process.kill()
    process.wait(timeout=60)
    (left,) = launched.left()
    foreign = Path(launched.temporary, "keras-preempt-notes")
    foreign.mkdir()
    (launched.folder / "listening-0").unlink()
    script = launched.script("listen(); until_signal()")
    other = launched.run(sys.executable, script)  # One that runs keeps its own.
    launched.trace("listening-0", other)
    names = launched.left()
    assert left not in names
    assert len(names) == 2
    third = launched.run("true")
    third.communicate(timeout=60)
    assert launched.left() == names
    other.send_signal(signal.SIGTERM)
    other.communicate(timeout=60)
    assert launched.left() == ["keras-preempt-notes"]
