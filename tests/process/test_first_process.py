"""A real process 1 of a PID namespace, to which the kernel hands no signal without a handler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

INSIDE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]

if subprocess.run([*INSIDE, "true"], capture_output=True).returncode != 0:
    pytest.skip("needs the right to make a PID namespace", allow_module_level=True)


def ended_by_sigterm(code: str) -> int:
    """The status of process 1 that runs `code`, which prints a line when it may be ended."""
    process = subprocess.Popen(
        [*INSIDE, sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n", process.stderr and process.stderr.read()
        (first,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGTERM)
        return process.wait(timeout=20)
    finally:
        process.kill()
        process.communicate()


def test_process_1_ends_at_a_sigterm_before_fit() -> None:
    assert ended_by_sigterm(
        "import signal\n"
        "from keras_preempt import PreemptionCallback\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()"
    ) == 128 + int(signal.SIGTERM)


def test_a_handler_of_the_program_stays_and_a_child_ends_as_ever() -> None:
    code = """
import os, signal, sys
from keras_preempt.process.first_process import hear_sigterm
hear_sigterm()
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(9))
hear_sigterm()
print('ready', flush=True)
while True: signal.pause()
"""
    assert ended_by_sigterm(code) == 9


def test_a_signal_after_fit_ends_process_1_and_one_after_a_save_does_not_replace_the_status(
    tmp_path: Path,
) -> None:
    before = f"""
import signal
import numpy as np
from keras_preempt import PreemptionCallback
import keras
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.zeros((8, 2))
def train(**options):
    model.fit(x, x[:, :1], verbose=0, **options)
callback = PreemptionCallback({str(tmp_path)!r})
"""
    after = before + "train(callbacks=[callback])\nprint('ready', flush=True)\nwhile True: signal.pause()"
    assert ended_by_sigterm(after) == 128 + int(signal.SIGTERM)
    during = (
        before
        + """
import atexit, os
atexit.register(lambda: os.kill(1, signal.SIGTERM))
train(epochs=10**9, callbacks=[callback, keras.callbacks.LambdaCallback(
    on_epoch_begin=lambda epoch, logs: epoch == 2 and print('ready', flush=True))])
"""
    )
    assert ended_by_sigterm(during) == 75
