"""``keras-preempt drill`` on a stand-in for a training script with real signals and real checkpoints."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import pytest

from keras_preempt.cli.drill import command
from keras_preempt.cli.drill.plan import RunShape, plan_preemptions
from keras_preempt.testing import FakeGcs
from tests.cli.launched import ENV, called

TRAIN = [sys.executable, str(Path(__file__).with_name("fake_training.py"))]


def drill(
    *options: str,
    code: int | None = 0,
    fault: str = "",
    shell: str = "",
    tmp: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Drills the stand-in, or a line of a shell, from this process; it ends with a status."""
    env = {**ENV, "FAKE_FAULT": fault, **(env or {})}
    if tmp is not None:
        env["TMPDIR"] = str(tmp)
    words = ["sh", "-c", shell] if shell else TRAIN
    with mock.patch("tempfile.tempdir", None):
        result = called("drill", *options, "--", *words, env=env)
    assert code is None or result.returncode == code, result.stdout + result.stderr
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


def test_a_worker_that_does_not_end_after_it_has_said_how_is_told_and_ended(tmp_path):
    with mock.patch.object(command, "_SAID", 1.0):
        result = drill("--workers", "2", "--seed", "7", code=3, fault="does not end", tmp=tmp_path)
    said = "w1 has said that it exits with status 75, and has not ended within 1 s since. Ending it."
    assert said in result.stdout
    assert result.stderr.startswith(
        "Error: No verdict: w1 was preempted and reported that it exits with status 75, but"
    )
    assert "the rest of a shell script" in result.stderr


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
        ("oss://bucket/drills", "'oss://' is not known"),
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


# -- Scripts with several fits --------------------------------------------------------------------------


def test_each_fit_is_preempted_and_compared_in_directories_of_its_own(tmp_path):
    options = ("--at", "step:7", "--at", "validation:5", "--at", "step:40", "--keep", str(tmp_path / "kept"))
    result = drill("--workers", "1", *options, env={"FAKE_FITS": "pre,runs/fine,pre"})
    last = result.stdout.splitlines()[-1]
    assert "tensors and all other state of 3 fits; 3 preemptions: w" in last
    assert re.search(r"w\d at step 7 \(fit 1, step 7 of its model\)", last)
    assert re.search(r"w\d in the validation after step 25 \(fit 2, step 5 of its model\)", last)
    assert re.search(r"w\d at step 40 \(fit 3, step 0 of its model\)", last)
    assert "0 steps lost" in last
    for run in ("undisturbed", "preempted"):
        places = sorted(path.name.rpartition("-")[0] for path in (tmp_path / "kept" / run).iterdir())
        assert places == ["fine", "pre"]
        assert list((tmp_path / "kept" / run).glob("pre-*/fit-00002/step-*"))


def test_a_difference_in_a_later_fit_is_found_and_named_with_it():
    told = drill("--at", "step:26", code=1, fault="weights", env={"FAKE_FITS": "pre,fine"}).stdout
    assert "different: fit 2 (fine): weights: 1 of 6 values" in told
    assert "fit 1 (pre): weights" not in told
    assert "From step 6 on (fit 2 of 2, epoch 0, w0) the runs differ: weights." in told
    assert "right where it continued, at step 6, restart 1 of 1" in told


def test_a_killed_worker_continues_from_the_checkpoint_of_its_fit():
    options = ("--kill", "--save-every", "5", "--at", "step:33")
    told = drill(*options, env={"FAKE_FITS": "pre,fine"}).stdout
    assert "the newest checkpoint of fit 2 is of step 10: starting again" in told
    continued = "training continued from step 10: 3 steps run again."
    assert f"w0 killed, 13 steps done in fit 2; {continued}" in told
    assert "; 3 steps run again)" in told.splitlines()[-1]
    assert re.search(r"Wall time, start-up included: undisturbed \d.* s, preempted \d.* s\.", told)


def test_a_directory_that_changes_with_each_start_is_reported_with_the_cure(tmp_path):
    told = drill("--at", "step:4", code=3, env={"FAKE_FITS": "run-TIME"}, tmp=tmp_path).stderr
    assert "gives its PreemptionCallback another directory in each start: 'run-" in told
    assert list(tmp_path.iterdir()) == []


# -- From which step on the runs differ, and why --------------------------------------------------------

UNSEEDED = "1 shuffle of the training data has no seed"
PYTHON = "Python code (tf.py_function, tf.numpy_function or a generator) in an input pipeline (augment)"


def test_a_value_that_is_restored_wrongly_is_named_and_seen_at_the_restart_itself():
    told = drill("--workers", "2", "--at", "step:7", code=1, fault="weights").stdout
    assert "From step 7 on (epoch 0, w0) the runs differ: weights; loss" not in told
    assert "From step 7 on (epoch 0, w0) the runs differ: weights." in told
    assert "right where it continued, at step 7, restart 1 of 1" in told
    assert "something was not saved or not restored" in told
    assert "changes_weights_in_validation = True" in told
    assert "different: weights: 1 of 6 values, by at most" in told
    assert told.splitlines()[-1].startswith("VERDICT: different (1 of 3 tensors, 0 places")


def test_training_that_drifts_after_a_restart_is_reported_with_its_step_and_the_input():
    env = {"FAKE_DOUBT": UNSEEDED, "FAKE_SOURCE": PYTHON}
    told = drill("--at", "step:7", "--twice", code=1, fault="drift", env=env).stdout
    assert "After step 9 was equal, from step 10 on (epoch 0, w0) the runs differ: weights" in told
    assert "3 steps after it continued at step 7, restart 1 of 1" in told
    assert f"Likely cause: the input. {UNSEEDED}" in told
    assert f"Other possible cause: {PYTHON}" in told
    assert "A second undisturbed run was identical" in told
    assert "drill, once more: undisturbed again" in told


def test_a_script_that_does_not_repeat_itself_is_found_without_a_third_run():
    told = drill("--at", "step:7", "--twice", code=1, fault="unrepeatable").stdout
    assert "After step 0 was equal, from step 1 on (epoch 0, w0) the runs differ: weights" in told
    assert "That is before the first preemption." in told
    assert "The script does not repeat itself, with or without preemptions" in told
    assert "keras.utils.set_random_seed" in told
    assert "once more" not in told


def test_a_lost_history_is_a_difference_that_no_step_shows():
    told = drill("--workers", "2", "--at", "step:7", code=1, fault="history").stdout
    assert re.search(r"History +DIFFERENT\n", told)
    assert "different: w1/callbacks/History: 20 and 19 entries" in told
    assert "All recorded steps are equal" in told
    assert "add --twice to find out" in told
