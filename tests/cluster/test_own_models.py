"""Workers of one launcher that train models of their own, without a strategy."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from keras_preempt.cluster import Supervisor, supervisor
from tests.cluster.forked import ForkedCluster

SCRIPT = """
import json, os, sys
import keras, numpy as np
from keras_preempt import PreemptionCallback

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
told = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: epoch == 2 and print("AT", flush=True))
model.fit(
    np.ones((8, 2)), np.ones(8), epochs=10**9, verbose=0, callbacks=[PreemptionCallback(f"{sys.argv[1]}/{index}"), told]
)
"""


def test_the_launcher_knows_each_of_them_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LocalCluster", ForkedCluster)
    (tmp_path / "train.py").write_text(SCRIPT)
    there: set[int] = set()

    def log(worker: int, line: str) -> None:
        if line == "AT":
            there.add(worker)
            if len(there) == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    report = Supervisor(
        2, [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "runs")], log=log
    ).run()
    assert report.exit_code == 75
    (only,) = report.incarnations
    assert set(only.statuses) == only.listened == {0, 1}
    assert all(status.saved for status in only.statuses.values())
    assert {status.directory for status in only.statuses.values()} == {
        str(tmp_path / "runs" / str(worker)) for worker in range(2)
    }
