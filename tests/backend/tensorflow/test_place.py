from __future__ import annotations

import json
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


def test_one_device_is_one_process() -> None:
    assert place(tf.distribute.get_strategy()) == Place(0, 1, "")
    assert place(tf.distribute.OneDeviceStrategy("/cpu:0")) == Place(0, 1, "")


def test_replicas_in_one_process_are_one_process() -> None:
    assert place(tf.distribute.MirroredStrategy(["/cpu:0"])) == Place(0, 1, "")


@pytest.mark.parametrize("task", [0, 1, 2])
def test_workers_are_numbered_as_tensorflow_numbers_them(monkeypatch: pytest.MonkeyPatch, task: int) -> None:
    assert in_cluster(monkeypatch, "worker", task, worker=3) == Place(
        task, 3, f"/job:worker/task:{task}", (("worker", 3),), joins=True
    )


def test_the_chief_is_member_0_and_the_workers_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = (("chief", 1), ("worker", 2))
    for member, (job, task) in enumerate([("chief", 0), ("worker", 0), ("worker", 1)]):
        found = in_cluster(monkeypatch, job, task, worker=2, chief=1)
        assert found == Place(member, 3, f"/job:{job}/task:{task}", jobs, joins=True)


def test_a_chief_and_one_worker_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_cluster(monkeypatch, "worker", 0, worker=1, chief=1).members == 2


def test_other_jobs_of_the_cluster_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_cluster(monkeypatch, "worker", 1, worker=2, evaluator=1, ps=2).members == 2


@pytest.mark.parametrize("jobs", [{"worker": 1}, {"chief": 1}])
def test_a_cluster_of_one_is_one_process(monkeypatch: pytest.MonkeyPatch, jobs: dict[str, int]) -> None:
    (job,) = jobs
    assert in_cluster(monkeypatch, job, 0, **jobs) == Place(0, 1, "", joins=True)


def test_a_strategy_over_workers_without_a_cluster_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert place(Workers()) == Place(0, 1, "", joins=True)


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
