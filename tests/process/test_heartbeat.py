"""What a worker shows its launcher, from real processes: how far it has come, and where its threads are."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keras_preempt.cluster.evidence import is_stopped, stacks, threads_of
from keras_preempt.process import heartbeat
from keras_preempt.process.environment import STATUS_DIR, WORKER
from keras_preempt.process.heartbeat import Phase

ROOT = Path(__file__).parents[2]


def await_(done: Callable[[], bool], seconds: float) -> None:
    """Waits for what can only be looked at."""
    limit = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.02)


class Worker:
    """A process of the worker 3, started by a launcher that watches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = heartbeat.prepared(folder / heartbeat.beat_file(3))
        self.process: subprocess.Popen[str] | None = None

    def start(self, body: str, **env: str) -> None:
        """Returns when it has printed a line."""
        code = "from keras_preempt.process import heartbeat\n" + textwrap.dedent(body)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, STATUS_DIR: str(self.folder), WORKER: "3", "PYTHONPATH": str(ROOT), **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().strip()

    @property
    def beat(self) -> heartbeat.Beat:
        return heartbeat.read_beat(self.file)

    def stacks(self) -> list[str]:
        beat = self.beat
        return stacks({3: (beat.pid, beat.signal, self.folder / heartbeat.stacks_file(3))}).get(3, [])

    def close(self) -> None:
        self.file.close()
        if self.process is not None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    made = Worker(tmp_path)
    yield made
    made.close()


def test_what_a_worker_has_stored_is_there_after_a_sigkill(worker: Worker) -> None:
    worker.start("""
        beat = heartbeat.of_process()
        beat.begin(2)
        beat.count[0] = 1
        beat.enter(heartbeat.Phase.TRAIN, 70, 4)
        beat.count[0] = 3
        beat.saved(68)
        print("ready", flush=True)
        input()
        """)
    assert worker.process is not None
    worker.process.kill()
    worker.process.wait()
    beat = worker.beat
    assert (beat.fit, beat.entered, beat.phase, beat.members) == (1, 3, Phase.TRAIN, 2)
    assert beat.pid == worker.process.pid
    assert (beat.step, beat.saved) == (
        74,
        68,
    )  # The step of the boundary that it has entered last is not done.


@pytest.mark.parametrize(
    ("does", "shown"),
    [
        ("input()", "<module>"),
        ("re.match('(a|aa)+$', 80 * 'a' + 'b')", "in match"),  # It holds the GIL.
        ("for _ in range(9): ctypes.PyDLL(None).sleep(600)", "<module>"),  # So does this.
    ],
)
def test_all_threads_are_shown_whatever_the_main_thread_does(does: str, shown: str, worker: Worker) -> None:
    worker.start(f"""
        import ctypes, re, threading
        def waits_in_a_thread():
            threading.Event().wait()
        threading.Thread(target=waits_in_a_thread, daemon=True).start()
        heartbeat.of_process()
        print("ready", flush=True)
        {does}
        """)

    def are_shown() -> bool:
        thread, _, main = "\n".join(worker.stacks()).partition("Current thread")
        return "in waits_in_a_thread" in thread and shown in main

    await_(are_shown, 30.0)  # It has printed a line, and gets there soon.
    assert worker.process is not None
    assert worker.process.poll() is None


def test_a_process_that_is_stopped_is_said_to_be_and_not_asked(worker: Worker) -> None:
    worker.start("heartbeat.of_process()\nprint('ready', flush=True)\ninput()")
    pid = worker.beat.pid
    await_(lambda: threads_of(pid).startswith("its main thread is sleeping"), 30.0)
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    assert is_stopped(pid)
    assert threads_of(pid).startswith("its main thread is stopped by a signal (SIGSTOP)")
    assert stacks({3: (pid, worker.beat.signal, worker.folder / heartbeat.stacks_file(3))}) == {}
    os.kill(pid, signal.SIGCONT)
    assert worker.stacks()


def test_a_signal_that_the_program_uses_is_left_to_it(worker: Worker) -> None:
    """Also one that it blocks, for a thread that waits for it, or ignores."""
    worker.start("""
        import signal
        signal.signal(signal.SIGRTMAX - 1, lambda number, frame: print("mine", flush=True))
        signal.signal(signal.SIGRTMAX - 2, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMAX - 3])
        heartbeat.of_process()
        print("ready", flush=True)
        input()
        """)
    assert worker.beat.signal == signal.SIGRTMAX - 4
    assert worker.stacks()


def test_a_process_without_the_handler_is_not_killed_by_the_question(worker: Worker) -> None:
    worker.start("heartbeat.of_process()\nimport signal\nprint('ready', flush=True)\ninput()")
    pid, number = worker.beat.pid, worker.beat.signal
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert stacks({3: (other.pid, number, worker.folder / "none")}) == {}
        assert other.poll() is None
        other.kill()
    assert pid != other.pid


def test_a_helper_that_runs_the_same_script_does_not_take_the_place_of_the_one_that_trains(
    worker: Worker,
) -> None:
    worker.start("""
        import os, subprocess, sys
        heartbeat.of_process().begin(1)
        code = "from keras_preempt.process import heartbeat; heartbeat.of_process()"
        subprocess.run([sys.executable, "-c", code], check=True)
        print(os.getpid(), flush=True)
        input()
        """)
    assert worker.beat.pid == int(worker.said)


def test_the_second_program_of_a_shell_script_is_watched_as_the_first_one_was(worker: Worker) -> None:
    worker.start("heartbeat.of_process().begin(1)\nprint('ready', flush=True)")
    assert worker.process is not None
    worker.process.communicate()
    first = worker.beat
    worker.start("heartbeat.of_process().begin(1)\nprint('ready', flush=True)\ninput()")
    assert (worker.beat.fit, worker.beat.pid) == (2, worker.process.pid)
    assert worker.beat != first


@pytest.mark.parametrize("damage", ["absent", "empty", "a folder", "read-only"])
def test_a_launcher_whose_file_cannot_be_used_changes_nothing(damage: str, worker: Worker) -> None:
    path = worker.folder / heartbeat.beat_file(3)
    path.unlink()
    if damage == "empty":
        path.touch()
    elif damage == "a folder":
        path.mkdir()
    elif damage == "read-only":
        path.symlink_to("/proc/version")
    worker.start("""
        beat = heartbeat.of_process()
        beat.begin(1)
        beat.count[0] += 1
        with beat.during(heartbeat.Phase.SAVE):
            print(list(beat.count[:3]), flush=True)
        """)
    assert worker.said.startswith("[1, ")


def test_a_store_is_one_machine_word() -> None:
    """So that a launcher never reads half of one."""
    assert ctypes.sizeof(ctypes.c_void_p) >= 8
    assert heartbeat._WORDS.size % 8 == 0
