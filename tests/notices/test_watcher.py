"""`PreemptionWatcher` hears of a preemption, stops when asked, and does nothing where there is nothing to watch.

With real processes and signals: tests/cluster/test_tpu.py.
"""

from __future__ import annotations

import gc
import inspect
import time
from typing import Any

import pytest
import tensorflow as tf

from keras_preempt import PreemptionWatcher
from keras_preempt.backend import place
from keras_preempt.backend.place import PREEMPTION_NOTICE_KEY, RemoteWorkers
from keras_preempt.backend.seam import backend
from keras_preempt.backend.tensorflow import coordination
from keras_preempt.backend.tensorflow.errors import WORKER_PREEMPTION
from keras_preempt.backend.tensorflow.place import of_strategy
from tests.agreement.memory_coordinator import MemoryService
from tests.notices.conftest import threads
from tests.notices.ear import wait_until

JOBS = (("worker", 2),)
THREAD = "keras_preempt-notice-key"


class Keys:
    """The coordination service, as far as it is asked for workers; they are gone after so many looks."""

    def __init__(self, looks: int | None = None) -> None:
        self.looks = 0
        self._gone_after = looks

    def are_gone(self, jobs: Any) -> bool:
        assert jobs == JOBS
        self.looks += 1
        return self._gone_after is not None and self.looks > self._gone_after


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> MemoryService:
    memory = MemoryService(1)
    monkeypatch.setattr(backend(), "notice_keys", lambda: memory.coordinators()[0])
    return memory


def test_without_a_coordination_service_it_does_nothing() -> None:
    with PreemptionWatcher() as watching:
        assert watching.preemption_message is None
        assert watching.block_until_worker_exit() is True
        assert threads(THREAD) == set()
        assert watching.platform.exit_code
        watching.check()


def test_what_a_worker_leaves_is_the_message_and_stays(service: MemoryService) -> None:
    with PreemptionWatcher() as watching:
        assert watching.preemption_message is None
        watching.check()
        service.coordinators()[0].put_if_absent(PREEMPTION_NOTICE_KEY, "/job:worker/task:1")
        wait_until(lambda: watching.preemption_message is not None)
    assert watching.preemption_message == "/job:worker/task:1"
    with pytest.raises(tf.errors.AbortedError, match=r"^Task /job:worker/task:1 was preempted\.$") as raised:
        watching.check()
    assert raised.value.experimental_payloads == {WORKER_PREEMPTION: b"/job:worker/task:1"}


def test_it_stops_when_asked_and_leaves_no_key_and_stops_too_when_it_is_forgotten(
    service: MemoryService,
) -> None:
    watching = PreemptionWatcher()
    assert threads(THREAD) == {THREAD}
    watching.stop()
    watching.stop()
    assert threads(THREAD) == set()
    assert service.keys() == []
    assert watching.preemption_message is None
    watching = PreemptionWatcher()
    assert threads(THREAD) == {THREAD}
    del watching
    gc.collect()
    wait_until(lambda: threads(THREAD) == set())


def test_waiting_for_workers_ends_with_them_or_in_time_and_asks_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = Keys(looks=3)
    monkeypatch.setattr(place, "LOOK_SECONDS", 0.01)
    assert RemoteWorkers(JOBS, keys.are_gone).wait_until_gone() is True
    assert keys.looks == 4
    keys = Keys()
    monkeypatch.setattr(place, "LOOK_SECONDS", 0.05)
    began = time.monotonic()
    assert RemoteWorkers(JOBS, keys.are_gone).wait_until_gone(0.2) is False
    assert time.monotonic() - began >= 0.2
    assert keys.looks <= 6


def test_it_takes_the_place_of_tensorflows_class() -> None:
    theirs: Any = tf.distribute.experimental.PreemptionWatcher
    assert list(inspect.signature(theirs).parameters) == list(inspect.signature(PreemptionWatcher).parameters)
    public = {name for name in vars(theirs) if not name.startswith("_")}
    assert public == {"preemption_message", "block_until_worker_exit"}
    assert public <= set(dir(PreemptionWatcher))


def strategy_on(*devices: str) -> Any:
    extended = type("Extended", (), {"worker_devices": devices})
    return type("Strategy", (), {"extended": extended})()


@pytest.mark.parametrize(
    ("devices", "jobs", "found"),
    [
        (["/job:worker/replica:0/task:1/device:TPU:0"], JOBS, JOBS),
        (
            ["/job:worker/replica:0/task:0/device:CPU:0", "/job:worker/replica:0/task:1/device:CPU:0"],
            JOBS,
            JOBS,
        ),
        (["/job:coordinator/replica:0/task:0/device:CPU:0"], JOBS, ()),
        (["/device:CPU:0"], JOBS, ()),
        (["/job:worker/replica:0/task:1/device:GPU:0"], (), ()),
    ],
    ids=["a tpu", "two workers", "the coordinator itself", "no job named", "not connected"],
)
def test_a_coordinator_is_known_by_a_strategy_on_devices_of_other_jobs(
    devices: list[str], jobs: Any, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "remote_jobs", lambda: jobs)
    assert of_strategy(strategy_on(*devices)) == RemoteWorkers(found)


def test_connected_workers_are_asked_for_at_the_coordination_service(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys(looks=1)
    monkeypatch.setattr(coordination, "remote_jobs", lambda: JOBS)
    monkeypatch.setattr(coordination, "are_gone", keys.are_gone)
    assert backend().remote_workers().wait_until_gone(timeout=0) is False
    assert backend().remote_workers().wait_until_gone(timeout=0) is True
