"""``keras-preempt drill --state`` on a real script that knows nothing of this package and resumes by itself."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from keras_preempt.cli.drill.any_trainer import MomentWatch
from keras_preempt.cli.drill.plan import Moment, Strike
from tests.cli.launched import ENV, called
from tests.docs.pages import ROOT

SCRIPT = Path(__file__).with_name("any_training.py")
AT = ("--at", "line:step 7 ")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A working directory with the script in it."""
    folder = tmp_path / "here"
    folder.mkdir()
    shutil.copy(SCRIPT, folder / "train.py")
    monkeypatch.chdir(folder)
    return folder


def drill(*options: str, code: int = 0, state: str = "out/*", **env: str) -> subprocess.CompletedProcess[str]:
    words = ["drill", "--state", state, *options, "--", sys.executable, "train.py"]
    result = called(*words, env={**ENV, **env})
    assert result.returncode == code, result.stdout + result.stderr
    return result


@pytest.mark.parametrize("status", [0, 75, 143, 1])
def test_a_trainer_that_resumes_exactly_is_identical_whatever_status_it_leaves_with(here, status):
    told = drill(*AT, LEAVES=str(status)).stdout
    assert told.splitlines()[-1] == (
        "VERDICT: identical (1 tensor and all else in 2 files; 1 preemption: w0 at the line with 'step 7 ' "
        f"(exit status {status}); SIGTERM from outside)"
    )
    assert told.count("[w0] step 7 of 30") == 2
    assert told.count("[w0] step 0 of 30") == 2
    assert [path.name for path in here.iterdir()] == ["train.py"]


def test_a_trainer_that_is_killed_and_runs_steps_again_is_identical():
    moments = ("--at", "line:step 7 ", "--at", "second:1")
    told = drill("--kill", *moments, FAULT="deaf", SECONDS_PER_STEP="0.2").stdout
    assert (
        "2 preemptions: w0 killed at the line with 'step 7 ' (exit status 137), w0 killed after 1 s" in told
    )


def test_lines_are_drawn_and_counted_over_all_starts():
    told = drill("--preempt", "3", "--seed", "4").stdout
    found = re.search(r"preempted: w0 at line (\d+) .*w0 at line (\d+) .*w0 at line (\d+) ", told)
    assert found, told
    assert sorted(set(map(int, found.groups()))) == list(map(int, found.groups()))
    assert "(of 30 lines, --seed 4)" in told
    assert told.count("[w0] saved") == 3


def test_a_worker_that_outlives_its_grace_period_is_killed():
    told = drill(*AT, "--grace", "0.1", FAULT="late", code=0).stdout
    assert "(exit status 137)" in told


@pytest.mark.parametrize(
    ("fault", "different"),
    [
        ("order", "out/weights.npz: weights: 4 of 4 values, by at most"),
        ("log", "out/log.txt: different from byte 9 on, of 9 and 19 bytes"),
        ("more", "out/more.txt: only in the preempted run"),
    ],
)
def test_a_wrong_resume_is_different_and_what_differs_is_named(fault, different):
    told = drill(*AT, "--twice", code=1, FAULT=fault).stdout
    assert f"  different: {different}" in told
    assert "A second undisturbed run was identical" in told
    assert told.splitlines()[-1].startswith("VERDICT: different (")


def test_a_script_that_does_not_repeat_itself_is_told_from_a_wrong_resume():
    told = drill(*AT, "--twice", code=1, FAULT="unrepeatable").stdout
    assert "The script does not repeat itself: two undisturbed runs of it give different results." in told


def test_a_trainer_that_begins_anew_is_identical_since_all_was_trained_again():
    assert drill(*AT, FAULT="forgets").stdout.count("[w0] step 0 of 30") == 3


@pytest.mark.parametrize(
    ("options", "fault", "status", "why"),
    [
        (("--at", "line:step 99"), "", 3, "this one did not come: w0 at the line with 'step 99'"),
        (("--at", "second:60"), "", 3, "this one did not come: w0 after 60 s of its start"),
        (("--preempt", "30"), "", 4, "Expected at least 31 lines of output for 30 preemptions"),
        (AT, "crash", 3, "the preempted run failed in a start that nobody disturbed: w0 with 3"),
        (AT, "torn", 3, "out/weights.npz of the preempted run: Expected weights.npz to be a whole .npz file"),
        (("--at", "line:step 29 "), "late", 3, "the last start changed none of the files"),
        (AT, "ended", 1, ""),
    ],
)
def test_what_gives_no_verdict_says_why(options, fault, status, why):
    result = drill("--json", *options, code=status, FAULT=fault)
    value = json.loads(result.stdout)
    assert value["exit_status"] == status
    if why:
        assert value["verdict"] == "none"
        assert why in value["why_none"]
    else:  # The last start wrote nothing: a difference in the files.
        assert value["other_state_different"] == [
            "out/log.txt: only in the undisturbed run",
            "out/weights.npz: only in the undisturbed run",
        ]


def test_files_of_a_training_that_was_over_before_the_preemption_prove_nothing(here):
    script = here / "train.py"
    script.write_text(
        "from pathlib import Path\n"
        "if not Path('end.txt').exists():\n"
        "    Path('end.txt').write_text('over')\n"
        "    print('over', flush=True)\n"
        "    import signal\n"
        "    signal.sigtimedwait([], 0.5)\n"
    )
    told = drill("--at", "line:over", state="end.txt", code=3).stderr
    assert "the last start changed none of the files (end.txt)" in told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--state", "../x"), "below the working directory, of which each run gets a copy. Received: '../x'"),
        (("--state", "/tmp/x"), "Received: '/tmp/x'"),
        (("--state", ""), "Received: ''"),
        (
            ("--state", "train.py"),
            "Expected no file that --state names before the training. Received: train.py",
        ),
        (("--state", "x", "--at", "step:3"), "Expected --at line:TEXT or second:N with --state"),
        (("--at", "line:x"), "Expected --state with --at line:x, a moment of any trainer"),
        (("--at", "second"), "With --state: line:TEXT or second:N. Received: 'second'"),
        (("--at", "line:"), "With --state: line:TEXT or second:N. Received: 'line:'"),
        (("--state", "x", "--preempt", "2", "--at", "second:3"), "Expected --preempt or --at with --state"),
        (("--state", "x", "--save-every", "3"), "Expected no --save-every with --state"),
        (("--state", "x", "--standby"), "Expected no --standby with --state"),
        (("--state", "x", "--keep", "gs://bucket/x"), "Expected --keep with --state to be a path"),
    ],
)
def test_wrong_usage_is_one_line_and_nothing_is_trained(options, message, bucket):
    result = called("drill", *options, "--", sys.executable, "train.py", env=ENV)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_patterns_that_mean_no_file_are_told_after_the_first_run():
    told = drill(*AT, state="nothing/*.pt", code=3)
    assert "the undisturbed run left no file that --state means: nothing/*.pt" in told.stderr
    assert "drill 2 of 2" not in told.stdout


def test_a_file_that_cannot_be_read_is_told_after_the_first_run():
    told = drill(*AT, code=3, FAULT="broken")
    assert "weights.npz of the undisturbed run: Expected weights.npz to be a whole .npz file" in told.stderr
    assert "drill 2 of 2" not in told.stdout


def test_a_folder_means_all_files_in_it_and_both_runs_are_kept(here, tmp_path):
    kept = tmp_path / "kept"
    told = drill(*AT, "--keep", str(kept), state="out").stdout
    assert "all else in 2 files" in told
    assert sorted(path.name for path in kept.iterdir()) == ["preempted-copy", "undisturbed-copy"]
    assert (kept / "preempted-copy" / "out" / "log.txt").read_text() == "30 steps\n"


def test_a_checkpoint_under_an_absolute_path_is_found_by_the_second_run_and_told(tmp_path):
    told = drill(*AT, code=3, SAVED=str(tmp_path / "saved.json")).stderr
    assert "look whether the script had found files of the first run under an absolute path" in told


def test_the_json_is_what_its_schema_says():
    value = json.loads(drill("--json", *AT).stdout)
    schema = json.loads((ROOT / "docs" / "drill-schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(value)
    assert value["files_compared"] == ["out/log.txt", "out/weights.npz"]
    (preemption,) = value["preemptions"]
    assert (preemption["moment"], preemption["step"]) == ("line", None)
    assert preemption["when"] == "w0 at the line with 'step 7 '"


def test_one_signal_is_sent_in_a_start_and_none_counts_that_found_nobody():
    sent: list[int] = []
    watch = MomentWatch(strike=Strike(0, Moment("line", 2)))
    watch.send = lambda number: 0
    watch.on_line("one")
    watch.on_line("two")
    assert not watch.sent
    watch.send = lambda number: sent.append(number) or 1
    for _ in range(3):
        watch.on_line("more")
    assert watch.sent
    assert sent == [signal.SIGTERM]
