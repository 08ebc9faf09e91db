"""What is read of a process while its threads come and go."""

from __future__ import annotations

import os
import subprocess
import sys

from keras_preempt.cli.doctor.processes import chain, look, training_process
from keras_preempt.process.this_process import name

_CHURN = """
import signal, sys, threading
signal.signal(signal.SIGTERM, lambda *_: None)
print("begun", flush=True)
for _ in range(10**5):
    threading.Thread(target=int).start()
"""


def test_a_process_whose_threads_come_and_go_is_read_all_the_same() -> None:
    with subprocess.Popen([sys.executable, "-c", _CHURN], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            looks = [look(process.pid) for _ in range(500)]
            assert process.poll() is None
        finally:
            process.kill()
    assert None not in looks
    assert all(found.caught and not found.ignored and not found.blocked for found in looks if found)


def test_the_processes_from_the_command_to_the_training_are_found() -> None:
    trains = training_process(name(), os.getppid())
    assert trains == os.getpid()
    assert [process.pid for process in chain(os.getppid(), trains)] == [os.getppid(), os.getpid()]
    assert training_process({**name(), "pid": -1}, os.getppid()) == 0
