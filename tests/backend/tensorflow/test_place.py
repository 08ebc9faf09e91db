from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from keras_preempt.backend.place import Place
from keras_preempt.backend.tensorflow.place import place, place_of_loop


class Workers(tf.distribute.MultiWorkerMirroredStrategy):
    """Has the cluster that TF_CONFIG describes, and starts no server for it."""

    def __init__(self) -> None:
        """No strategy is made."""

    @property
    def cluster_resolver(self) -> Any:
        return tf.distribute.cluster_resolver.TFConfigClusterResolver()


class ParameterServers(tf.distribute.ParameterServerStrategy):
    def __init__(self) -> None:
        """No strategy is made."""


def in_cluster(monkeypatch: pytest.MonkeyPatch, job: str, task: int, **jobs: int) -> Place:
    cluster = {name: [f"localhost:{1000 + n}" for n in range(count)] for name, count in jobs.items()}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": job, "index": task}}))
    return place(Workers())


@pytest.mark.parametrize(
    "make",
    [
        tf.distribute.get_strategy,
        lambda: tf.distribute.OneDeviceStrategy("/cpu:0"),
        lambda: tf.distribute.MirroredStrategy(["/cpu:0"]),
    ],
)
def test_devices_and_replicas_in_one_process_are_one_process(make: Callable[[], Any]) -> None:
    assert place(make()) == Place(0, 1, "")


WORKERS, CHIEF = {"worker": 3}, {"chief": 1, "worker": 2}


@pytest.mark.parametrize(
    ("member", "job", "task", "jobs"),
    [
        *[(task, "worker", task, WORKERS) for task in range(3)],
        *[(0, "chief", 0, CHIEF), (1, "worker", 0, CHIEF), (2, "worker", 1, CHIEF)],
    ],
)
def test_workers_are_numbered_as_tensorflow_numbers_them_after_the_chief(
    monkeypatch: pytest.MonkeyPatch, member: int, job: str, task: int, jobs: dict[str, int]
) -> None:
    device = f"/job:{job}/task:{task}"
    # Written in the other order.
    found = in_cluster(monkeypatch, job, task, **dict(reversed(jobs.items())))
    assert found == Place(member, 3, device, tuple(jobs.items()), joins=True)


@pytest.mark.parametrize(
    ("task", "jobs"), [(0, {"worker": 1, "chief": 1}), (1, {"worker": 2, "evaluator": 1, "ps": 2})]
)
def test_the_chief_is_counted_and_other_jobs_are_not(
    monkeypatch: pytest.MonkeyPatch, task: int, jobs: dict[str, int]
) -> None:
    assert in_cluster(monkeypatch, "worker", task, **jobs).members == 2


@pytest.mark.parametrize("job", ["worker", "chief", None])
def test_a_cluster_of_one_or_none_is_one_process(monkeypatch: pytest.MonkeyPatch, job: str | None) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    found = in_cluster(monkeypatch, job, 0, **{job: 1}) if job else place(Workers())
    assert found == Place(0, 1, "", joins=True)


def test_a_process_that_is_no_training_worker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"Received: \('evaluator', 0\).*'chief' or a 'worker'"):
        in_cluster(monkeypatch, "evaluator", 0, worker=2, evaluator=1)


def test_parameter_servers_have_no_common_step_and_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Received: ParameterServerStrategy.*CheckpointManager"):
        place(ParameterServers())


class Resolver:
    """The cluster resolver of a custom loop."""

    def __init__(self, task_type: str, **jobs: int) -> None:
        self.task_type, self.task_id = task_type, 0
        self._jobs = {name: [f"localhost:{1000 + n}" for n in range(count)] for name, count in jobs.items()}

    def cluster_spec(self) -> Any:
        return tf.train.ClusterSpec(self._jobs)


def test_the_place_of_a_loop_is_that_of_its_resolver_or_else_of_the_strategy_in_scope() -> None:
    assert place_of_loop(Resolver("worker", chief=1, worker=2))[0].jobs == (("chief", 1), ("worker", 2))
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        assert place_of_loop(None) == (Place(), strategy)
    with pytest.raises(ValueError, match="parameter servers"):
        place_of_loop(Resolver("worker", worker=2, ps=1))
