"""Workers of a DataLoader outlive the signals that are notices to the process that trains, and end with it.

They end with the fit, too, if nobody else holds them, and leave nothing in the temporary directory.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from keras_preempt.backend.torch import workers

SCRIPT = """
import atexit, gc, multiprocessing, os, signal, sys
import keras, numpy as np, torch
from keras_preempt import PreemptionCallback

if sys.argv[3] == "ending":  # Comes after the workers were killed, before their directory is removed.
    atexit.register(os.kill, os.getpid(), signal.SIGTERM)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return np.full(4, index, "float32"), np.float32(index)

class Kill(keras.callbacks.Callback):
    keeps_state = False
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 3 and sys.argv[3] == "struck":
            os.killpg(0, signal.SIGTERM)
        if batch == 3 and sys.argv[3] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
persistent, count = sys.argv[2] in ("persistent", "dropped"), 0 if sys.argv[2] == "none" else 2
data = torch.utils.data.DataLoader(
    Data(), batch_size=4, shuffle=True, num_workers=count, persistent_workers=persistent
)
callbacks = [Kill(), PreemptionCallback(sys.argv[1])]
model.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=callbacks, validation_data=data)
left = len(multiprocessing.active_children())
assert left == (2 if persistent else 0), left
if sys.argv[2] == "dropped":
    gc.disable()
    del data
    assert multiprocessing.active_children() == []
    sys.exit()
held = iter(data)  # Nothing ends its workers but the end of the process.
next(held)
"""


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, str(folder / "run"), *arguments]
    environment = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, start_new_session=True, env=environment
    )


def _left(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("pymp-*")]


@pytest.mark.parametrize("kind", ["persistent", "new", "dropped"])
def test_workers_do_not_keep_a_process_from_ending(kind: str, tmp_path: Path) -> None:
    done = _run(tmp_path, kind, "undisturbed")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert _left(tmp_path) == []


@pytest.mark.parametrize("kind", ["persistent", "new"])
def test_a_signal_to_all_processes_of_a_job_is_a_notice(kind: str, tmp_path: Path) -> None:
    done = _run(tmp_path, kind, "struck")
    assert done.returncode == 75, done.stderr
    assert "Saved step-" in done.stderr
    assert "Traceback" not in done.stderr
    assert _left(tmp_path) == []


@pytest.mark.parametrize("kind", ["persistent", "none"])
def test_workers_of_a_process_that_was_killed_end_and_leave_nothing(kind: str, tmp_path: Path) -> None:
    done = _run(tmp_path, kind, "killed")  # Returns when none of them holds the streams any more.
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "Traceback" not in done.stderr
    assert _left(tmp_path) == []


def test_a_signal_while_a_process_ends_waits_until_its_directory_is_gone(tmp_path: Path) -> None:
    done = _run(tmp_path, "persistent", "ending")
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert _left(tmp_path) == []


def test_a_loader_is_as_it_was_when_the_last_callback_is_gone() -> None:
    gc.collect()  # Models of other tests that were fitted hold one.
    original = DataLoader.__iter__
    first, second = workers.keep_deaf(), workers.keep_deaf()
    assert DataLoader.__iter__ is not original
    first()
    first()
    assert DataLoader.__iter__ is not original
    second()
    assert DataLoader.__iter__ is original


def test_a_worker_has_the_signals_blocked_and_this_process_has_not() -> None:
    def blocked(worker: int) -> None:
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])

    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork", "worker_init_fn": blocked}
    end = workers.keep_deaf()
    try:
        assert len(list(DataLoader(TensorDataset(torch.arange(3)), **options))) == 3
    finally:
        end()
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
