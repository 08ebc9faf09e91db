"""``keras-preempt drill`` on a stand-in for a training script with real signals and real checkpoints."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import pytest

from keras_preempt.cli.drill.plan import RunShape, plan_preemptions
from keras_preempt.cli.main import main
from keras_preempt.testing import FakeGcs

_ROOT = Path(__file__).parents[3]
_SCRIPT = Path(__file__).with_name("fake_training.py")
_PATH = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
ENVIRONMENT = {**os.environ, "PYTHONPATH": _PATH}
COMMAND = [sys.executable, "-m", "keras_preempt.cli.main", "drill"]
TRAIN = [sys.executable, str(_SCRIPT)]


def drill(
    *options: str,
    code: int | None = 0,
    fault: str = "",
    shell: str = "",
    tmp: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Drills the stand-in, or a line of a shell, from this process; it ends with a status."""
    output, error, here = io.StringIO(), io.StringIO(), os.getcwd()
    env = {**ENVIRONMENT, "FAKE_FAULT": fault, **(env or {})}
    if tmp is not None:
        env["TMPDIR"] = str(tmp)
    os.chdir(cwd or here)
    try:
        with (
            mock.patch.dict(os.environ, env),
            mock.patch("tempfile.tempdir", None),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(error),
        ):
            status = main(["drill", *options, "--", *(["sh", "-c", shell] if shell else TRAIN)])
    finally:
        os.chdir(here)
    result = subprocess.CompletedProcess(options, status, output.getvalue(), error.getvalue())
    assert code is None or status == code, result.stdout + result.stderr
    return result


def test_a_script_that_resumes_exactly_is_identical(tmp_path):
    told = drill("--workers", "2", "--preempt", "2", "--seed", "7", tmp=tmp_path).stdout
    last = told.splitlines()[-1]
    assert last.startswith("VERDICT: identical (3 tensors")
    assert re.search(r"2 preemptions: w\d at step \d+", last)
    assert "0 steps lost" in last
    assert "(of 20, --seed 7)" in told
    assert "preempted run finished: incarnations=3 preemptions=2 failures=0" in told
    assert re.search(r"tensors different +0\n", told)
    assert re.search(r"History +equal\n", told)
    # Each incarnation has a row; a phase that this version does not know is shown, too.
    assert re.search(r"steps run +wall +restore +train +odd +rest *\n", told)
    assert len(re.findall(r"^(?:undisturbed|preempted) \d+ ", told, re.MULTILINE)) == 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "fault", "message"),
    [
        (("--preempt", "20"), "", "at least 21 training steps"),
        (("--at", "validation"), "no validation", "the script's fit runs no validation"),
        (("--at", "saving"), "", "or the drill --save-every"),
    ],
)
def test_a_moment_that_the_run_does_not_have_is_reported_after_the_undisturbed_run(options, fault, message):
    result = drill(*options, code=4, fault=fault)
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert "drill 2 of 2" not in result.stdout


def test_a_directory_with_files_in_it_is_not_written_to(tmp_path):
    (tmp_path / "mine").write_text("")
    assert "new or empty directory" in drill("--keep", str(tmp_path), code=2).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_drill_over_a_bucket_keeps_both_runs_there(tmp_path):
    with FakeGcs() as gcs:
        options = ("--seed", "1", "--keep", "gs://bucket/drills/1/")
        result = drill(*options, tmp=tmp_path, env=gcs.environment())
        assert result.stdout.splitlines()[-1].startswith("VERDICT: identical (2 tensors")
        assert {name.split("/")[2] for name in gcs.objects("bucket")} == {"undisturbed", "preempted"}
        assert list(tmp_path.iterdir()) == []
        before = gcs.objects("bucket")
        again = drill(*options, code=2, tmp=tmp_path, env=gcs.environment())
        assert "new or empty directory for --keep. Received: gs://bucket/drills/1" in again.stderr
        assert gcs.objects("bucket") == before


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ("gs://other/drills", "gcloud storage buckets create gs://other"),
        ("gs://", "Expected a place such as gs://bucket/prefix"),
        ("gs:/bucket/drills", "a slash is missing"),
        ("s3://bucket/drills", "'s3://' is not known"),
        ("", "Expected a non-empty directory"),
    ],
)
def test_a_directory_that_cannot_be_kept_in_is_one_line_and_nothing_is_trained(keep, message, bucket):
    result = drill("--keep", keep, code=2)
    assert bucket.objects("bucket") == {}
    assert message in result.stderr
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)


def test_a_seed_that_was_drawn_is_printed_and_gives_the_same_plan():
    told = drill("--preempt", "2").stdout
    found = re.search(r"preempted: (.*) \(of 20, --seed (\d+)\)", told)
    assert found, told
    plan = plan_preemptions(int(found[2]), 2, RunShape(20), 1)
    assert found[1] == ", ".join(f"w{each.member} at step {each.step}" for each in plan)
