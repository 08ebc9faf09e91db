"""The bucket of a drill, whose requests fail on demand; and the files that the drill itself writes into."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from keras_preempt.cli.drill.directories import FAKES, MIXES, DrillBucket, drill_bucket
from keras_preempt.testing import FAULT_KINDS
from keras_preempt.testing.gcs.fake import QUIET_CLIENT
from tests.cli.drill.test_command import TRAIN
from tests.cli.launched import ENV, command_line

VARIABLES = {"gcs": "STORAGE_EMULATOR_HOST", "s3": "AWS_ENDPOINT_URL", "azure": "AZURE_STORAGE_ENDPOINT"}
SERVICES = list(FAKES)


def statuses(bucket: DrillBucket, service: str, count: int) -> set[int | None]:
    """Lists the bucket, each time another prefix; returns the statuses of the answers."""
    before = len(bucket._fake.requests)
    url = os.environ[VARIABLES[service]]
    for number in range(count):
        if service == "gcs":
            place = f"{url}/storage/v1/b/drill/o?prefix={number}"
        else:
            place = f"{url}/drill?restype=container&comp=list&list-type=2&prefix={number}"
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(place, timeout=30).close()
    return {request.status for request in bucket._fake.requests[before:]}


@pytest.mark.parametrize("service", SERVICES)
def test_requests_fail_between_the_beginning_and_the_end_of_the_faults(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = VARIABLES[service]
    monkeypatch.setenv(variable, "another")
    for other in ("GOOGLE_CLOUD_PROJECT", "AWS_REGION", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.delenv(*QUIET_CLIENT, raising=False)  # A fake of Google's leaves it behind.
    before = dict(os.environ)
    with drill_bucket(service, "errors", seed=1) as bucket:
        assert bucket.place == f"{FAKES[service]}://drill"
        # Without credentials; an error that is due comes before the look at them.
        fine = {"gcs": {200}, "s3": {403}, "azure": {401}}[service]
        assert statuses(bucket, service, 120) == fine
        bucket.begin_faults()
        assert statuses(bucket, service, 120) == {*fine, 429, 500, 503}
        bucket.end_faults()
        assert statuses(bucket, service, 120) == fine
        assert "of 360 requests to the bucket met a fault: " in bucket.summary()
        assert " 503" in bucket.summary()
    assert os.environ[variable] == "another"
    assert {name: value for name, value in os.environ.items() if name not in QUIET_CLIENT} == before


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
