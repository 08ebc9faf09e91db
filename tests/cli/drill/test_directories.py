"""The bucket of a drill, whose requests fail on demand; and the files that the drill itself writes into."""

from __future__ import annotations

import os
import shlex
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from keras_preempt.cli.drill.directories import MIXES, drill_bucket
from keras_preempt.testing import FAULT_KINDS
from tests.cli.drill.test_command import TRAIN
from tests.cli.launched import ENV, command_line

_LISTING = "/storage/v1/b/drill/o?prefix="


def statuses(count: int) -> set[int]:
    """Lists the bucket, each time another prefix; returns the statuses of the answers."""
    found = set()
    for number in range(count):
        url = f"{os.environ['STORAGE_EMULATOR_HOST']}{_LISTING}{number}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                found.add(answer.status)
        except urllib.error.HTTPError as error:
            found.add(error.code)
            error.close()
    return found


def test_requests_fail_between_the_beginning_and_the_end_of_the_faults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "another")
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    with drill_bucket("errors", seed=1) as bucket:
        assert bucket.place == "gs://drill"
        assert statuses(60) == {200}
        bucket.begin_faults()
        assert statuses(60) == {200, 429, 500, 503}
        bucket.end_faults()
        assert statuses(60) == {200}
        assert "of 180 requests to the bucket met a fault: " in bucket.summary()
        assert " 503" in bucket.summary()
    assert os.environ["STORAGE_EMULATOR_HOST"] == "another"
    assert "GOOGLE_CLOUD_PROJECT" not in os.environ


def test_every_mix_consists_of_known_faults_and_the_last_has_all() -> None:
    assert {kind for kinds in MIXES.values() for kind in kinds} <= set(FAULT_KINDS)
    assert set(MIXES["all"]) == {kind for kinds in MIXES.values() for kind in kinds}


@pytest.mark.parametrize(
    "into",
    ["> drill.log 2>&1", pytest.param("2>&1 | tee drill.log", marks=pytest.mark.chaos)],
)
def test_the_output_of_the_drill_is_not_taken_for_a_file_of_the_script(into: str, tmp_path: Path) -> None:
    line = f"{shlex.join(command_line('drill', '--at', 'step:4', '--', *TRAIN))} {into}"
    env = {**ENV, "FAKE_FAULT": "writes"}
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, env=env, capture_output=True, timeout=300)
    printed = (tmp_path / "drill.log").read_text()
    assert done.returncode == 0, printed
    assert "VERDICT: identical" in printed
    assert "the script also wrote log.csv here" in printed
    assert (tmp_path / "log.csv").exists()
