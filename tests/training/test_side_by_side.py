"""Workers of one cluster that each train a model of their own: told, and refused in one directory."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_preempt import PreemptionCallback
from keras_preempt.backend.place import Place, RemoteWorkers
from keras_preempt.checkpoint import incarnations
from keras_preempt.cluster import worker_environment
from keras_preempt.cluster.tf_config import tf_config_of
from keras_preempt.process import this_process
from keras_preempt.training import side_by_side
from keras_preempt.training.side_by_side import Alone, SideBySide, alone
from tests import fits
from tests.backend.tensorflow.test_place import Workers
from tests.checkpoint.builders import new_store

CLUSTER = {"worker": ["one:1", "two:1"]}
ANOTHER_MACHINE = {"machine": "elsewhere", "pid": 1, "ticks": 1}
GONE = {**this_process.name(), "ticks": 0}


def in_cluster(
    monkeypatch: pytest.MonkeyPatch, cluster: Any = CLUSTER, job: str = "worker", index: int = 1
) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": job, "index": index}}))


def worker(number: int) -> Alone:
    return Alone(f"worker {number}", 2, "c", "no strategy")


def claimed_by(store: Any, number: int, process: Any) -> int:
    claim = {**worker(number).claim()["alone"], "process": process}
    return incarnations.claim(store, {incarnations.ALONE: claim})


def fit(directory: Path) -> None:
    """Trains as a script that has just been started does."""
    fits.forget()
    keras.utils.clear_session()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    x = np.ones((4, 2), np.float32)
    model.fit(x, x[:, :1], batch_size=2, shuffle=False, verbose=0, callbacks=[PreemptionCallback(directory)])


def test_a_worker_that_trains_alone_is_warned_and_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_cluster(monkeypatch)
    with caplog.at_level(logging.WARNING, "keras_preempt"):
        fit(tmp_path / "run")
    (told,) = [r.message for r in caplog.records if "TF_CONFIG" in r.message]
    assert told.startswith("TF_CONFIG names 2 workers, and this one, worker 1, trains a model of its own")
    assert "made under no strategy" in told
    assert "MultiWorkerMirroredStrategy" in told


def test_another_worker_of_the_cluster_in_the_directory_is_an_error_and_leaves_no_claim(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_cluster(monkeypatch, index=0)
    fit(tmp_path / "run")  # This process lives on, as the other worker would.
    before = sorted(path.name for path in (tmp_path / "run" / "incarnations").iterdir())
    in_cluster(monkeypatch, index=1)
    with pytest.raises(
        SideBySide, match=r"(?s)worker 1, made under no strategy, in .*run, where worker 0 has begun"
    ):
        fit(tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run" / "incarnations").iterdir()) == before


def test_each_worker_in_its_own_directory_and_a_restart_of_the_same_worker_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for start in (0, 1):
        in_cluster(monkeypatch, index=start)
        fit(tmp_path / f"run-{start}")
        fit(tmp_path / f"run-{start}")


@pytest.mark.parametrize("process", [this_process.name(), ANOTHER_MACHINE])
def test_a_worker_that_may_live_is_company(tmp_path: Path, process: Any) -> None:
    store = new_store(tmp_path)
    claimed_by(store, 0, process)
    with pytest.raises(SideBySide):
        worker(1).refuse_company(store, claimed_by(store, 1, None))


def test_a_worker_that_is_gone_is_none(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    claimed_by(store, 0, GONE)
    worker(1).refuse_company(store, claimed_by(store, 1, None))


def test_a_worker_of_another_machine_counts_for_as_long_as_both_can_be_one_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(tmp_path)
    claimed_by(store, 0, ANOTHER_MACHINE)
    monkeypatch.setattr(side_by_side, "TOGETHER", 0.0)
    worker(1).refuse_company(store, claimed_by(store, 1, None))


def test_an_earlier_start_of_the_same_worker_or_of_another_cluster_is_none(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    claimed_by(store, 1, this_process.name())
    incarnations.claim(
        store, {incarnations.ALONE: {"task": "worker 0", "cluster": "d", "process": ANOTHER_MACHINE}}
    )
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
    ("cluster", "job"),
    [
        ({"worker": ["one:1"]}, "worker"),
        ({"chief": ["one:1"]}, "chief"),
        ({"worker": ["one:1", "two:1"], "evaluator": ["three:1"]}, "evaluator"),
        ({"worker": ["one:1", "two:1"], "ps": ["three:1"]}, "worker"),
        ({"worker": ["one:1"], "coordinator": ["two:1"]}, "coordinator"),
    ],
)
def test_evaluators_parameter_servers_and_clusters_of_one_are_not_alone(
    monkeypatch: pytest.MonkeyPatch, cluster: Any, job: str
) -> None:
    in_cluster(monkeypatch, cluster, job, 0)
    assert alone(ONE_DEVICE, Place()) is None


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "no JSON", '{"cluster": 1, "task": 2}', '{"task": {"index": "x"}}']
)
def test_what_describes_no_cluster_is_passed_over(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    assert alone(ONE_DEVICE, Place()) is None


def test_those_that_train_with_others_are_not_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    in_cluster(monkeypatch)
    assert alone(Workers(), Place(1, 2, "/job:worker/task:1")) is None
    assert alone(ONE_DEVICE, Place(workers=RemoteWorkers((("worker", 2),)))) is None
    assert alone(Workers(), Place(joins=True)) is None


def test_a_chief_with_workers_and_a_mirrored_strategy_are_alone_too(monkeypatch: pytest.MonkeyPatch) -> None:
    in_cluster(monkeypatch, {"chief": ["one:1"], "worker": {"0": "two:1"}}, "chief", 0)
    found = alone(tf.distribute.MirroredStrategy(["/cpu:0"]), Place())
    assert found is not None
    assert (found.task, found.members, found.strategy) == ("chief 0", 2, "MirroredStrategy")


@pytest.fixture
def on_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 1 of 2, as its launcher tells it: TF_CONFIG, which counts for TensorFlow, is there as well."""
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    for name, value in worker_environment(tf_config_of(["one:1", "two:1"], 1)).items():
        monkeypatch.setenv(name, value)


def test_a_process_on_jax_that_has_not_joined_the_others_is_alone(
    on_jax: None, caplog: pytest.LogCaptureFixture
) -> None:
    found = alone(None, Place())
    assert found is not None
    assert (found.task, found.members, found.strategy) == ("process 1", 2, "no distribution")
    with caplog.at_level(logging.WARNING, "keras_preempt"):
        found.warn()
    (told,) = caplog.messages
    assert told.startswith(
        "KERAS_DISTRIBUTION_NUM_PROCESSES names 2 workers, and this one, process 1, trains"
    )
    assert "call keras.distribution.initialize()" in told
    assert "MultiWorkerMirroredStrategy" not in told


def test_another_process_of_the_job_on_jax_in_the_directory_is_an_error(
    on_jax: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(tmp_path)
    first = alone(None, Place())
    monkeypatch.setenv("KERAS_DISTRIBUTION_PROCESS_ID", "0")
    second = alone(None, Place())
    assert first is not None
    assert second is not None
    incarnations.claim(store, first.claim())
    with pytest.raises(SideBySide, match=r"2 workers of KERAS_.*process 0.*process 1 has.*initialize\(\)"):
        second.refuse_company(store, incarnations.claim(store, second.claim()))


def test_processes_on_jax_that_train_together_or_are_no_job_are_not_alone(
    on_jax: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert alone(object(), Place(1, 2, "process 1", joins=True)) is None
    for number in ("1", "", "two"):
        monkeypatch.setenv("KERAS_DISTRIBUTION_NUM_PROCESSES", number)
        assert alone(None, Place()) is None


def test_on_tensorflow_the_variables_of_jax_do_not_count(
    on_jax: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    monkeypatch.delenv("TF_CONFIG")
    assert alone(ONE_DEVICE, Place()) is None
