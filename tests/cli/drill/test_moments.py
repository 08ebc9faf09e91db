"""``keras-preempt drill`` at moments of one's own choice, on a stand-in for a training script."""

from __future__ import annotations

import re
import sys

import pytest

from keras_preempt.cli.main import main
from tests.cli.drill.test_command import drill


def test_chosen_and_drawn_moments_happen_in_the_order_of_the_run(tmp_path):
    options = ("--at", "validation:3", "--at", "step:3", "--preempt", "1", "--seed", "5", "--workers", "1")
    result = drill(*options, tmp=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    last = result.stdout.splitlines()[-1]
    assert last.startswith("VERDICT: identical")
    assert "3 preemptions: w0 at step 3, w0 " in last
    assert "w0 in the validation after step 15" in last
    assert "0 steps lost" in last
    assert result.stdout.count("w0 gets SIGTERM now") == 3
    assert list(tmp_path.iterdir()) == []


def test_another_signal_is_sent_where_it_is_listened_for():
    result = drill("--signal", "usr2", "--at", "step:4")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "w0 gets SIGUSR2 now" in result.stdout


def test_a_signal_that_the_script_does_not_listen_for_is_reported_with_what_to_write():
    result = drill("--signal", "SIGUSR1", "--at", "step:4")
    assert result.returncode == 3, result.stdout + result.stderr
    assert "SIGUSR1 ended w0: the script does not listen for it. Pass PreemptionCallback(" in result.stderr


def test_a_kill_continues_from_the_last_periodic_checkpoint_and_says_what_was_run_again():
    result = drill("--kill", "--at", "step:13", "--save-every", "5")
    assert result.returncode == 0, result.stdout + result.stderr
    assert (
        "incarnation 0: w0 was killed as planned; the newest checkpoint is of step 10: starting again"
        in result.stdout
    )
    assert "w0 killed, 13 steps done; training continued from step 10: 3 steps run again." in result.stdout
    assert re.search(
        r"VERDICT: identical \(.*w0 killed at step 13; SIGKILL from outside; 3 steps run again, "
        r"(\d+\.\d s lost|the undisturbed run took \d+\.\d s longer)\)",
        result.stdout,
    )


def test_a_kill_without_a_checkpoint_starts_over_and_says_what_to_do():
    result = drill("--kill", "--at", "step:13")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "there is no checkpoint yet: starting again" in result.stdout
    assert "13 steps done; training started from the beginning: 13 steps run again." in result.stdout
    assert "Give PreemptionCallback save_every, or try one with --save-every" in result.stdout


def test_a_kill_in_the_middle_of_a_save_continues_from_the_older_checkpoint():
    result = drill("--kill", "--at", "saving", "--save-every", "5")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "the newest checkpoint is of step 5: starting again" in result.stdout
    assert "10 steps done; training continued from step 5: 5 steps run again." in result.stdout


def test_a_notice_in_the_middle_of_a_save_loses_nothing():
    result = drill("--at", "saving:1", "--at", "leaving:12", "--save-every", "5")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("w0 gets SIGTERM now") == 3  # Twice for the one that is leaving.
    assert "0 steps lost" in result.stdout.splitlines()[-1]


def test_a_kill_while_a_notice_is_answered_continues_from_the_older_checkpoint():
    result = drill("--kill", "--at", "leaving:12", "--save-every", "5")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.index("w0 gets SIGTERM now") < result.stdout.index("w0 gets SIGKILL now")
    assert "12 steps done; training continued from step 10: 2 steps run again." in result.stdout


def test_a_worker_that_stays_is_killed_at_the_end_of_its_grace_period_and_the_verdict_says_so():
    result = drill("--grace", "0.5", "--at", "step:12", "--save-every", "5", fault="stays")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "w0 was still there when its 0.5 s of grace were over: killed" in result.stdout
    last = result.stdout.splitlines()[-1]
    assert (
        "w0 at step 12, killed at the end of its grace period; SIGTERM from outside; 2 steps run again"
        in last
    )


def test_the_start_after_the_last_preemption_outlives_the_grace_period_of_that_one():
    result = drill("--grace", "0.5", "--at", "step:12", "--save-every", "5", fault="starts slowly")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.chaos  # Each process imports the storage client, for seconds; test_directories.py does not.
def test_a_bucket_with_faults_is_brought_up_for_the_script(tmp_path):
    result = drill("--gcs-faults", "errors", "--seed", "3", tmp=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(
        r"^[1-9]\d* of \d+ requests to the bucket met a fault: .*(429|500|503)", result.stdout, re.M
    )
    assert list(tmp_path.iterdir()) == []


def test_workers_that_each_train_a_model_of_their_own_are_no_verdict():
    result = drill("--workers", "2", "--at", "step:4", fault="alone")
    assert result.returncode == 3, result.stdout + result.stderr
    assert "each of the 2 workers trains a model of its own" in result.stderr
    assert "tf.distribute.MultiWorkerMirroredStrategy" in result.stderr


@pytest.mark.parametrize("isolate", [False, True])
def test_files_that_the_script_writes_here_are_named_or_kept_apart(isolate, tmp_path):
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    options = ("--isolate",) if isolate else ()
    result = drill("--at", "step:4", *options, fault="writes", tmp=temporary, cwd=here)
    assert result.returncode == 0, result.stdout + result.stderr
    assert ("the script also wrote log.csv here" in result.stdout) is not isolate
    assert (here / "log.csv").exists() is not isolate
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--at", "step"), "Expected step:N, validation, validation:K"),
        (("--at", "step:0"), "with N and K from 1. Received: 'step:0'"),
        (("--at", "epoch:1"), "Received: 'epoch:1'"),
        (("--signal", "SIGNAL"), "--signal: Expected names of signals"),
        (("--signal", "KILL"), "Use --kill"),
        (("--kill", "--grace", "3"), "Received: both, and a kill comes without a grace period"),
        (("--grace", "0"), "--grace"),
        (("--save-every", "often"), "--save-every: Expected save_every to be a positive number of steps"),
        (("--gcs-faults", "rain"), "--gcs-faults"),
        (("--gcs-faults", "all", "--keep", "x"), "the bucket with faults ends with the drill"),
    ],
)
def test_options_that_make_no_sense_are_one_line_and_nothing_is_trained(options, message, capfd):
    assert main(["drill", *options, "--", sys.executable, "-c", "print('trained')"]) == 2
    out, err = capfd.readouterr()
    assert message in err
    assert err.count("\n") == 1
    assert out == ""
