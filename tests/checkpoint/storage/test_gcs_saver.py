"""A checkpoint in a bucket that does not answer."""

from __future__ import annotations

import logging
import time

import pytest

from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.testing import FakeGcs
from tests.training.test_saver import prepared, saver


def test_a_checkpoint_whose_manifest_may_still_arrive_is_not_said_to_be_lost(
    bucket: GcsStore, gcs: FakeGcs, caplog: pytest.LogCaptureFixture
) -> None:
    made = saver(bucket, Retention(1))
    gcs.fail_next("stall", times=10_000, match="MANIFEST.json", stall_seconds=60)
    bucket.deadline = time.monotonic() + 2
    with caplog.at_level(logging.WARNING, "keras_preempt"):
        saved = made.write(prepared(1))
    assert (saved.name, saved.uncertain) == (None, True)
    assert "NOT KNOWN whether the checkpoint at step 1 was saved" in caplog.text
    assert "NOT saved" not in caplog.text
