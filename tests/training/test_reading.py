from __future__ import annotations

from pathlib import Path

import pytest

from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.process.environment import RESTORE
from keras_preempt.training import reading


def test_a_bucket_is_read_together_and_a_directory_by_everyone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RESTORE, raising=False)
    bucket, directory = GcsStore("gs://bucket/run"), LocalStore(tmp_path)
    assert reading.together(bucket)
    assert not reading.together(directory)
    monkeypatch.setenv(RESTORE, "read")
    assert not reading.together(bucket)
    monkeypatch.setenv(RESTORE, "exchange")
    assert reading.together(directory)


def test_another_way_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RESTORE, "share")
    with pytest.raises(
        ValueError, match=r"Expected KERAS_PREEMPT_RESTORE to be 'exchange' or 'read'.*'share'"
    ):
        reading.together(LocalStore(tmp_path))
