"""A process that has said its status ends with it in time, whatever keeps Python from ending."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
import atexit, ctypes, os, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from keras_preempt.process import end_limit
end_limit.LAST_RESORT = 0.5
end_limit.limit_end(75, 1.0, lambda: os.write(1, b"BEFORE "))
def later(): os.write(1, b"ALIVE ")
class Slow:
    def __del__(self, wait=time.sleep): wait(60)
"""

WAYS = {
    "a thread": "threading.Thread(target=time.sleep, args=(60,)).start()",
    "what a pool still does": "ThreadPoolExecutor(1).submit(time.sleep, 60)",
    "an exit function": "atexit.register(time.sleep, 60)",
    "an object": "sys.modules['slow'] = Slow()",
    "Python's lock": "atexit.register(lambda: ctypes.PyDLL(None).sleep(60))",
}


def run(rest: str) -> tuple[int, str, float]:
    began = time.monotonic()
    command = [sys.executable, "-c", PROGRAM + rest]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50)
    return done.returncode, done.stdout + done.stderr, time.monotonic() - began


@pytest.mark.parametrize("way", WAYS)
def test_a_process_ends_with_its_status_whatever_holds_it_up(way: str) -> None:
    status, said, seconds = run(WAYS[way] + "\nsys.exit(75)")
    assert status == 75, said
    assert seconds < 30, said
    if way in ("a thread", "what a pool still does") and sys.version_info >= (3, 12, 2):
        assert "it waits for" in said


def test_what_ends_by_itself_ends_as_ever() -> None:
    threads = "threading.Thread(target=lambda: (time.sleep(0.2), later())).start()\nsys.exit(75)"
    assert run(threads)[:2] == (75, "ALIVE ")


@pytest.mark.parametrize(
    "program",
    [
        "end_limit.no_limit()\nthreading.Timer(2.5, later).start()",
        "time.sleep(2.5); later()",  # The limit begins when Python begins to end.
        "process = os.fork()\nif process: sys.exit(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))\n"
        "threading.Timer(2.5, later).start()",
    ],
)
def test_a_program_that_goes_on_is_not_ended(program: str) -> None:
    assert run(program + "\nsys.exit(3)")[:2] == (3, "ALIVE ")
