"""``keras-preempt drill`` on a stand-in for a training script with real signals and real checkpoints."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from keras_preempt.testing import FakeGcs

_ROOT = Path(__file__).parents[3]
_SCRIPT = Path(__file__).with_name("fake_training.py")
_PATH = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
ENVIRONMENT = {**os.environ, "PYTHONPATH": _PATH}


def drill(
    *options: str,
    fault: str = "",
    tmp: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "keras_preempt.cli.main",
        "drill",
        *options,
        "--",
        sys.executable,
        str(_SCRIPT),
    ]
    env = {**ENVIRONMENT, "FAKE_FAULT": fault, **(env or {})}
    if tmp is not None:
        env["TMPDIR"] = str(tmp)
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=cwd, timeout=300)


@pytest.mark.parametrize(("workers", "count"), [(1, 1), (2, 3)])
def test_a_script_that_resumes_exactly_is_identical(workers, count, tmp_path):
    result = drill("--workers", str(workers), "--preempt", str(count), "--seed", "7", tmp=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    last = result.stdout.splitlines()[-1]
    assert last.startswith(f"VERDICT: identical ({1 + workers} tensors")
    assert re.search(rf"{count} preemptions?: w\d at step \d+", last)
    assert "0 steps lost" in last
    assert f"preempted run finished: incarnations={count + 1} preemptions={count} failures=0" in result.stdout
    assert re.search(r"tensors different +0\n", result.stdout)
    assert re.search(r"History +equal\n", result.stdout)
    # Each incarnation has a row; a phase that this version does not know is shown, too.
    assert re.search(r"steps run +wall +restore +train +odd +rest *\n", result.stdout)
    assert len(re.findall(r"^(?:undisturbed|preempted) \d+ ", result.stdout, re.MULTILINE)) == count + 2
    assert list(tmp_path.iterdir()) == []


def test_one_value_changed_by_a_resume_is_found_and_named():
    result = drill("--workers", "2", "--seed", "7", fault="weights")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "different: weights: 1 of 6 values, by at most" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("VERDICT: different (1 of 3 tensors, 0 places")


def test_a_history_lost_by_a_resume_is_found_and_named():
    result = drill("--workers", "2", "--seed", "7", fault="history")
    assert result.returncode == 1, result.stdout + result.stderr
    assert re.search(r"History +DIFFERENT\n", result.stdout)
    assert "different: w1/callbacks/History: 20 and 19 entries" in result.stdout


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("crash", "the preempted run failed (exit code 3)"),
        ("deaf", "expected 1 preemptions. Received: 0"),
        ("silent", "did not report a finished fit"),
    ],
)
def test_a_run_that_fails_gives_no_verdict(fault, message):
    result = drill("--workers", "2", "--seed", "7", fault=fault)
    assert result.returncode == 3, result.stdout + result.stderr
    assert message in result.stderr
    assert "VERDICT" not in result.stdout


@pytest.mark.parametrize(
    ("options", "fault", "message"),
    [
        (("--preempt", "20"), "", "at least 21 training steps"),
        (("--at", "step:20"), "", "--at step:20 lies beyond the end: the run has 20 training steps"),
        (("--at", "validation"), "no validation", "the script's fit runs no validation"),
        (("--at", "saving"), "", "or the drill --save-every"),
    ],
)
def test_a_moment_that_the_run_does_not_have_is_reported_after_the_undisturbed_run(options, fault, message):
    result = drill(*options, fault=fault)
    assert result.returncode == 4, result.stdout + result.stderr
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert "drill 2 of 2" not in result.stdout


def test_kept_checkpoints_are_those_of_both_runs(tmp_path):
    result = drill("--seed", "1", "--keep", str(tmp_path / "kept"))
    assert result.returncode == 0, result.stdout + result.stderr
    names = {path.name for path in (tmp_path / "kept").iterdir()}
    assert names == {"undisturbed", "preempted"}
    assert list((tmp_path / "kept" / "preempted").glob("run-*/step-*"))


def test_a_directory_with_files_in_it_is_not_written_to(tmp_path):
    (tmp_path / "mine").write_text("")
    result = drill("--keep", str(tmp_path))
    assert result.returncode == 2
    assert "new or empty directory" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_drill_over_a_bucket_keeps_both_runs_there(tmp_path):
    with FakeGcs() as gcs:
        options = ("--workers", "2", "--seed", "1", "--keep", "gs://bucket/drills/1/")
        result = drill(*options, tmp=tmp_path, env=gcs.environment())
        assert result.returncode == 0, result.stdout + result.stderr
        assert result.stdout.splitlines()[-1].startswith("VERDICT: identical (3 tensors")
        assert {name.split("/")[2] for name in gcs.objects("bucket")} == {"undisturbed", "preempted"}
        assert list(tmp_path.iterdir()) == []
        before = gcs.objects("bucket")
        again = drill(*options, tmp=tmp_path, env=gcs.environment())
        assert again.returncode == 2
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
def test_a_directory_that_cannot_be_kept_in_is_one_line_and_nothing_is_trained(keep, message, tmp_path):
    with FakeGcs() as gcs:
        result = drill("--keep", keep, tmp=tmp_path, env=gcs.environment())
        assert gcs.objects("bucket") == {}
    assert result.returncode == 2, result.stdout + result.stderr
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert "drill 1 of 2" not in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_seed_that_was_drawn_is_printed_and_gives_the_same_plan():
    first = drill("--preempt", "2")
    found = re.search(r"preempted: (.*) \(of 20, --seed (\d+)\)", first.stdout)
    assert found, first.stdout
    assert f"preempted: {found[1]} (of 20" in drill("--preempt", "2", "--seed", found[2]).stdout


def test_a_drill_told_to_stop_ends_its_workers_and_its_files(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import time\nprint('training')\ntime.sleep(600)\n")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "keras_preempt.cli.main", "drill", "--", sys.executable, str(script)]
    env = {**os.environ, "PYTHONPATH": _PATH, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as process:
        assert process.stdout is not None
        while "training" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "stopped by SIGTERM" in errors
    assert list(temporary.iterdir()) == []
