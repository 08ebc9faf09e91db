"""``keras-preempt drill`` at moments of one's own choice, with signals from outside and others, on a stand-in."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.cli.drill.test_command import TRAIN, drill

LINE = shlex.join(TRAIN)


def test_chosen_and_drawn_moments_happen_in_the_order_of_the_run(tmp_path):
    options = ("--at", "validation:3", "--at", "step:3", "--preempt", "1", "--seed", "5", "--workers", "1")
    told = drill(*options, tmp=tmp_path).stdout
    last = told.splitlines()[-1]
    assert last.startswith("VERDICT: identical")
    assert "3 preemptions: w0 at step 3, w0 " in last
    assert "w0 in the validation after step 15" in last
    assert "0 steps lost" in last
    assert told.count("w0 gets SIGTERM now") == 3
    assert list(tmp_path.iterdir()) == []


def test_another_signal_is_sent_and_files_that_the_script_writes_are_kept_apart(tmp_path, monkeypatch):
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(here)
    options = ("--signal", "usr2", "--at", "step:4", "--isolate")
    told = drill(*options, fault="writes", tmp=temporary).stdout
    assert "w0 gets SIGUSR2 now" in told
    assert "the script also wrote log.csv here" not in told
    assert list(here.iterdir()) == list(temporary.iterdir()) == []


def test_a_shell_that_swallows_the_signal_fails_the_drill_with_the_cure():
    result = drill("--at", "step:4", shell=f"{LINE}; true", code=3)
    assert "w0 gets SIGTERM now, from outside" in result.stdout
    assert "SIGTERM does not reach the training" in result.stderr
    assert "exec python train.py" in result.stderr
    assert "VERDICT" not in result.stdout


def test_a_shell_that_hands_the_signal_on_is_a_cure():
    """The other cure, `exec`, leaves no shell: as in all other drills."""
    shell = f"{LINE} & child=$!; trap 'kill -TERM $child' TERM; wait $child; wait $child"
    last = drill("--at", "step:4", shell=shell).stdout.splitlines()[-1]
    assert "w0 at step 4; SIGTERM from outside; 0 steps lost" in last


def test_a_kill_takes_the_shell_and_what_it_has_started():
    options = ("--kill", "--save-every", "3", "--at", "step:4")
    last = drill(*options, shell=f"{LINE}; true").stdout.splitlines()[-1]
    assert "w0 killed at step 4; SIGKILL from outside; 1 step run again" in last


def test_the_verdict_says_which_signals_a_worker_sent_itself():
    told = drill("--at", "leaving:12", "--at", "step:4").stdout
    assert told.count("w0 gets SIGTERM now, from outside") == 2
    assert told.count("w0 gets SIGTERM now, sent by the worker to itself") == 1
    outside = "SIGTERM from outside (w0 at step 4)"
    assert (
        f"{outside}; SIGTERM from outside, then SIGTERM sent by the worker to itself (w0 at "
        in told.splitlines()[-1]
    )


def test_a_signal_that_the_script_does_not_listen_for_is_reported_with_what_to_write():
    told = drill("--signal", "SIGUSR1", "--at", "step:4", code=3).stderr
    assert "SIGUSR1 ended w0: the script does not listen for it. Pass PreemptionCallback(" in told


def test_a_kill_continues_from_the_checkpoint_before_it_and_says_what_was_run_again():
    """In the middle of a save, in the answer to a notice, and in a step."""
    moments = ("--at", "step:13", "--at", "leaving:12", "--at", "saving")
    told = drill("--kill", *moments, "--save-every", "5").stdout
    assert "the newest checkpoint is of step 5: starting again" in told
    assert "10 steps done; training continued from step 5: 5 steps run again." in told
    assert told.index("w0 gets SIGTERM now") < told.rindex("w0 gets SIGKILL now")
    assert "12 steps done; training continued from step 10: 2 steps run again." in told
    newest = "incarnation 2: w0 was killed as planned; the newest checkpoint is of step 10: starting again"
    assert newest in told
    assert "w0 killed, 13 steps done; training continued from step 10: 3 steps run again." in told
    assert re.search(r"VERDICT: identical \(.*w0 killed at step 13.* 10 steps run again\)", told)


def test_a_kill_without_a_checkpoint_starts_over_and_says_what_to_do():
    told = drill("--kill", "--at", "step:13").stdout
    assert "there is no checkpoint yet: starting again" in told
    assert "13 steps done; training started from the beginning: 13 steps run again." in told
    assert "Give PreemptionCallback save_every, or try one with --save-every" in told


def test_a_notice_in_the_middle_of_a_save_loses_nothing():
    told = drill("--at", "saving:1", "--at", "leaving:12", "--save-every", "5").stdout
    assert told.count("w0 gets SIGTERM now") == 3  # Twice for the one that is leaving.
    assert "0 steps lost" in told.splitlines()[-1]


def test_a_worker_that_stays_is_killed_at_the_end_of_its_grace_period_and_the_verdict_says_so():
    told = drill("--grace", "0.5", "--at", "step:12", "--save-every", "5", fault="stays").stdout
    assert "w0 was still there when its 0.5 s of grace were over: killed" in told
    wanted = "w0 at step 12, killed at the end of its grace period; SIGTERM from outside; 2 steps run again"
    assert wanted in told.splitlines()[-1]


@pytest.mark.chaos  # test_signaller.py has the same without a drill.
def test_the_start_after_the_last_preemption_outlives_the_grace_period_of_that_one():
    drill("--grace", "0.5", "--at", "step:12", "--save-every", "5", fault="starts slowly")


@pytest.mark.chaos  # Each process imports the storage client, for seconds; test_directories.py does not.
@pytest.mark.parametrize("service", ["gcs", "s3", "azure"])
def test_a_bucket_with_faults_is_brought_up_for_the_script(service, tmp_path):
    told = drill(f"--{service}-faults", "errors", "--seed", "3", tmp=tmp_path).stdout
    assert re.search(r"^[1-9]\d* of \d+ requests to the bucket met a fault: .*(429|500|503)", told, re.M)
    assert list(tmp_path.iterdir()) == []


def test_workers_that_each_train_a_model_of_their_own_are_no_verdict():
    told = drill("--workers", "2", "--at", "step:4", code=3, fault="alone").stderr
    assert "each of the 2 workers trains a model of its own" in told
    assert "tf.distribute.MultiWorkerMirroredStrategy" in told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--at", "step"), "Expected step:N, validation, validation:K"),
        (("--at", "step:0"), "with N and K from 1. With --state: line:TEXT or second:N. Received: 'step:0'"),
        (("--at", "epoch:1"), "Received: 'epoch:1'"),
        (("--signal", "SIGNAL"), "--signal: Expected names of signals"),
        (("--signal", "KILL"), "Use --kill"),
        (("--kill", "--grace", "3"), "Received: both, and a kill comes without a grace period"),
        (("--grace", "0"), "--grace"),
        (("--save-every", "often"), "--save-every: Expected save_every to be a positive number of steps"),
        (("--gcs-faults", "rain"), "--gcs-faults"),
        (("--gcs-faults", "all", "--keep", "x"), "the bucket with faults ends with the drill"),
        (("--azure-faults", "all", "--keep", "x"), "Expected --azure-faults or --keep"),
        (("--gcs-faults", "all", "--s3-faults", "all"), "Received: --gcs-faults and --s3-faults."),
    ],
)
def test_options_that_make_no_sense_are_one_line_and_nothing_is_trained(options, message):
    result = drill(*options, shell="echo trained", code=2)
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
