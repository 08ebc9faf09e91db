"""Who waits for another worker's file looks no more often than its store says."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.commit import commit, wait_for_commit
from keras_preempt.checkpoint.errors import CommitFailed
from keras_preempt.checkpoint.layout import attempt_directory
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.storage.local import LocalStore

ATTEMPT = "00001-0000"
DIRECTORY = attempt_directory(3, ATTEMPT)


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


class Patient(LocalStore):
    look_again = GcsStore.look_again


@pytest.mark.parametrize("waiting_for", ["the manifest", "the parts"])
def test_looks_at_a_bucket_are_spaced_out_up_to_its_longest_pause(waiting_for: str, tmp_path: Path) -> None:
    store, clock = Patient(tmp_path), Clock()
    assert incarnations.claim(store, {}) == 1
    if waiting_for == "the manifest":
        found = wait_for_commit(store, DIRECTORY, 5.0, clock=lambda: clock.now, wait=clock.wait)
        assert found is None
    else:
        with pytest.raises(CommitFailed, match="none of workers 0, 1"):
            commit(
                store,
                Attempt(step=3, name=ATTEMPT, position={}, kind="preempted", members=2, writers=(0,)),
                timeout=5.0,
                optional_timeout=5.0,
                clock=lambda: clock.now,
                wait=clock.wait,
            )
    assert clock.waits == pytest.approx([0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 0.6])


def test_a_local_directory_is_looked_at_more_often_than_a_bucket() -> None:
    assert LocalStore.look_again < GcsStore.look_again
