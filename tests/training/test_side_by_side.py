"""Workers of one cluster that each train a model of their own: told, and refused in one directory."""

from __future__ import annotations

import contextlib
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_preempt import PreemptionCallback
from keras_preempt.backend.jax import place as jax_place
from keras_preempt.backend.place import Place, RemoteWorkers
from keras_preempt.backend.tensorflow.backend import BACKEND
from keras_preempt.backend.tensorflow.place import _BY_TENSORFLOW
from keras_preempt.checkpoint import incarnations
from keras_preempt.cluster import worker_environment
from keras_preempt.cluster.tf_config import tf_config_of
from keras_preempt.process import this_process
from keras_preempt.training.start import side_by_side
from keras_preempt.training.start.side_by_side import Alone, SideBySide, alone
from tests import fits
from tests.backend.tensorflow.test_place import Workers
from tests.checkpoint.builders import new_store
from tests.cluster.noticed_fit import Model

CLUSTER = {"worker": ["one:1", "two:1"]}
ANOTHER_MACHINE = {"machine": "elsewhere", "pid": 1, "ticks": 1}
GONE = {**this_process.name(), "ticks": 0}


def config(cluster: Any = CLUSTER, job: str = "worker", index: int = 1) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


compiled = functools.cache(Model)


def worker(number: int) -> Alone:
    return Alone(f"worker {number}", 2, "c", "no strategy", _BY_TENSORFLOW)


def claimed_by(store: Any, number: int, process: Any) -> int:
    claim = {**worker(number).claim()["alone"], "process": process}
    return incarnations.claim(store, {incarnations.ALONE: claim})


def fit(directory: Path) -> None:
    """Trains as a script that has just been started does."""
    fits.forget()
    x = np.ones((4, 4), np.float32)
    ours = PreemptionCallback(directory)
    compiled().keras.fit(x, x[:, :1], batch_size=2, shuffle=False, verbose=0, callbacks=[ours])


def test_a_worker_that_trains_alone_is_warned_and_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TF_CONFIG", config())
    fit(tmp_path / "run")
    (told,) = [r.message for r in caplog.records if "TF_CONFIG" in r.message]
    assert told.startswith("TF_CONFIG names 2 workers, and this one, worker 1, trains a model of its own")
    assert "made under no strategy" in told
    assert "MultiWorkerMirroredStrategy" in told


def test_another_worker_in_the_directory_is_an_error_and_leaves_no_claim_but_a_restart_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TF_CONFIG", config(index=0))
    fit(tmp_path / "run")  # This process lives on, as the other worker would.
    before = sorted(path.name for path in (tmp_path / "run" / "incarnations").iterdir())
    monkeypatch.setenv("TF_CONFIG", config(index=1))
    expected = r"(?s)worker 1, made under no strategy, in .*run, where worker 0 has begun"
    with pytest.raises(SideBySide, match=expected):
        fit(tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run" / "incarnations").iterdir()) == before
    for _ in range(2):  # In its own directory, and as a restart there, it goes on.
        fit(tmp_path / "run-1")
    monkeypatch.setenv("TF_CONFIG", config(index=0))
    fit(tmp_path / "run")


@pytest.mark.parametrize(
    ("process", "together", "company"),
    [
        (this_process.name(), 60.0, True),
        (ANOTHER_MACHINE, 60.0, True),
        (ANOTHER_MACHINE, 0.0, False),  # For as long as both can be one start.
        (GONE, 60.0, False),
    ],
)
def test_a_worker_that_may_live_is_company(
    process: Any, together: float, company: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(tmp_path)
    claimed_by(store, 0, process)
    monkeypatch.setattr(side_by_side, "TOGETHER", together)
    with pytest.raises(SideBySide) if company else contextlib.nullcontext():
        worker(1).refuse_company(store, claimed_by(store, 1, None))


def test_an_earlier_start_of_the_same_worker_or_of_another_cluster_is_none(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    claimed_by(store, 1, this_process.name())
    of_another_cluster = {"task": "worker 0", "cluster": "d", "process": ANOTHER_MACHINE}
    incarnations.claim(store, {incarnations.ALONE: of_another_cluster})
    incarnations.claim(store, {})
    worker(1).refuse_company(store, claimed_by(store, 1, None))


def test_of_two_that_begin_at_once_the_second_claim_gives_way(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    first, second = claimed_by(store, 0, this_process.name()), claimed_by(store, 1, this_process.name())
    worker(0).refuse_company(store, first)
    with pytest.raises(SideBySide):
        worker(1).refuse_company(store, second)


ONE_DEVICE = tf.distribute.get_strategy()


@pytest.mark.parametrize(
    "text",
    [
        config({"worker": ["one:1"]}, index=0),
        config({"chief": ["one:1"]}, "chief", 0),
        config({"worker": ["one:1", "two:1"], "evaluator": ["three:1"]}, "evaluator", 0),
        config({"worker": ["one:1", "two:1"], "ps": ["three:1"]}, index=0),
        config({"worker": ["one:1"], "coordinator": ["two:1"]}, "coordinator", 0),
        *("", "{}", "[]", "no JSON", '{"cluster": 1, "task": 2}', '{"task": {"index": "x"}}'),
    ],
)
def test_evaluators_parameter_servers_clusters_of_one_and_what_describes_no_cluster_are_not_alone(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    assert alone(ONE_DEVICE, Place()) is None


def test_a_chief_and_a_mirrored_strategy_are_alone_too_and_those_that_train_with_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TF_CONFIG", config())
    assert alone(Workers(), Place(1, 2, "/job:worker/task:1")) is None
    assert alone(ONE_DEVICE, Place(workers=RemoteWorkers((("worker", 2),)))) is None
    assert alone(Workers(), Place(joins=True)) is None
    monkeypatch.setenv("TF_CONFIG", config({"chief": ["one:1"], "worker": {"0": "two:1"}}, "chief", 0))
    found = alone(tf.distribute.MirroredStrategy(["/cpu:0"]), Place())
    assert found is not None
    assert (found.task, found.members, found.strategy) == ("chief 0", 2, "MirroredStrategy")


@pytest.fixture
def on_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 1 of 2, as its launcher tells it: TF_CONFIG, which counts for TensorFlow, is there as well."""
    monkeypatch.setattr(BACKEND, "neighbours", jax_place.neighbours)
    for name, value in worker_environment(tf_config_of(["one:1", "two:1"], 1)).items():
        monkeypatch.setenv(name, value)


def test_a_process_on_jax_that_has_not_joined_the_others_is_alone_and_refused_in_the_directory_of_another(
    on_jax: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = alone(None, Place())
    assert found is not None
    assert (found.task, found.members, found.strategy) == ("process 1", 2, "no distribution")
    found.warn()
    (told,) = caplog.messages
    expected = "KERAS_DISTRIBUTION_NUM_PROCESSES names 2 workers, and this one, process 1, trains"
    assert told.startswith(expected)
    assert "call keras.distribution.initialize()" in told
    assert "MultiWorkerMirroredStrategy" not in told
    monkeypatch.setenv("KERAS_DISTRIBUTION_PROCESS_ID", "0")
    other, store = alone(None, Place()), new_store(tmp_path)
    assert other is not None
    incarnations.claim(store, found.claim())
    with pytest.raises(SideBySide, match=r"2 workers of KERAS_.*process 0.*process 1 has.*initialize\(\)"):
        other.refuse_company(store, incarnations.claim(store, other.claim()))


def test_processes_on_jax_that_train_together_or_are_no_job_are_not_alone(
    on_jax: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert alone(object(), Place(1, 2, "process 1", joins=True)) is None
    for number in ("1", "", "two"):
        monkeypatch.setenv("KERAS_DISTRIBUTION_NUM_PROCESSES", number)
        assert alone(None, Place()) is None
    monkeypatch.setenv("KERAS_DISTRIBUTION_NUM_PROCESSES", "2")
    assert alone(None, Place()) is not None
    # Of TensorFlow these variables say nothing.
    monkeypatch.undo()
    monkeypatch.setenv("KERAS_DISTRIBUTION_NUM_PROCESSES", "2")
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert alone(ONE_DEVICE, Place()) is None
