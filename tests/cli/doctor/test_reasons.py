"""How the doctor explains the end of a trial. The trials are filled in here: none is run, and nothing is signalled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keras_preempt.cli.doctor.finding import Finding, Findings
from keras_preempt.cli.doctor.processes import Process
from keras_preempt.cli.doctor.reasons import explain_trial
from keras_preempt.cli.doctor.trial import Trial
from keras_preempt.notices.cloud import Grace
from keras_preempt.process.exit_codes import EXIT_NOT_SAVED, EXIT_RESTART, RESTART_CODES

SAVED = 6
PYTHON = Process(20, "python train.py", 10, blocked=False, ignored=False, caught=True, first=False)
WRAPPER = Process(10, "bash start.sh", 1, blocked=False, ignored=False, caught=True, first=False)


def trial(
    chain: list[Process],
    exits: dict[int, int],
    *,
    saved: int | None = None,
    codes: tuple[int, ...] = RESTART_CODES,
    loop: bool = False,
    **seen: Any,
) -> Trial:
    """A trial that trained and was signalled: it heard of that, unless it is a loop, and ended after 4 of 30 s."""
    made = Trial(
        ["bash", "start.sh"],
        workers=1,
        root="no-such-place",
        grace=Grace(30.0, "--grace"),
        patience=60.0,
        codes=codes,
        log=lambda index, line: None,
        uses_handler=loop,
    )
    if not loop:
        made.watched.reported = [{"event": "start", "time": 0.0, "member": 0, "incarnation": 1}]
    made.trains = made.in_time = made.found_training = True
    made.heard = not loop
    made.chain, made.exits, made.saved, made.seconds = chain, exits, saved, 4.0
    made.last_lines.add("the last line")
    for name, value in seen.items():
        assert hasattr(made, name)
        setattr(made, name, value)
    return made


def explained(seen: Trial, check: str, level: str = "problem") -> Finding:
    """The only finding."""
    findings = Findings()
    explain_trial(seen, findings)
    (finding,) = findings.all
    assert (finding.check, finding.level) == (check, level)
    return finding


def test_a_save_in_time_passes() -> None:
    finding = explained(trial([PYTHON], {0: EXIT_RESTART}, saved=SAVED), "signal path", "ok")
    assert "step 6 was saved, it ended with 75 after 4.0 s of the 30 s of grace" in finding.what


def test_a_save_that_leaves_no_safety_margin_is_a_warning() -> None:
    findings = Findings()
    explain_trial(trial([PYTHON], {0: EXIT_RESTART}, saved=SAVED, seconds=28.6), findings)
    assert [finding.level for finding in findings.all] == ["ok", "warning"]
    assert "took 28.6 s of the 30 s" in findings.all[1].what
    assert "more grace" in findings.all[1].cure


@pytest.mark.parametrize("status", [0, 1])
def test_a_wrapper_that_hands_the_signal_on_and_not_the_status_is_found(status: int) -> None:
    finding = explained(trial([WRAPPER, PYTHON], {0: status}, saved=SAVED), "exit status")
    assert f"Step 6 was saved, but the command ended with status {status}" in finding.what
    assert "exit $status" in finding.cure


def test_a_save_that_failed_is_found_by_its_status() -> None:
    finding = explained(trial([WRAPPER, PYTHON], {0: EXIT_NOT_SAVED}), "save")
    assert "could not be saved (status 74)" in finding.what
    assert "the last line" in finding.cure


def test_a_save_that_outlasts_the_grace_is_found() -> None:
    finding = explained(trial([PYTHON], {}, in_time=False, seconds=30.0), "save")
    assert "still ran when the 30 s of grace were used up" in finding.what
    assert "terminationGracePeriodSeconds" in finding.cure


def test_a_shell_that_is_process_1_and_handles_no_signal_is_found() -> None:
    shell = replace(WRAPPER, caught=False, first=True)
    assert "exec python" in explained(trial([shell, PYTHON], {}, in_time=False), "PID 1").cure


def test_a_status_of_the_script_s_own_needs_restart_code() -> None:
    finding = explained(trial([PYTHON], {0: 3}, saved=SAVED), "signal path")
    assert "saved step 6 and ended with status 3" in finding.what
    assert "A status of 75, 143, 42 within 30 s is expected" in finding.what
    assert "--restart-code" in finding.cure
    explained(trial([PYTHON], {0: 3}, saved=SAVED, codes=(3,)), "signal path", "ok")


def test_a_worker_with_another_status_than_the_rest_is_found() -> None:
    explained(trial([PYTHON], {0: 75, 1: 75}, saved=SAVED), "signal path", "ok")
    finding = explained(trial([PYTHON], {0: 75, 1: 1}, saved=SAVED), "signal path")
    assert "ended with status 1, status 75" in finding.what


def test_a_loop_that_ends_as_expected_is_not_checked_for_what_it_saved() -> None:
    finding = explained(trial([PYTHON], {0: EXIT_RESTART}, loop=True), "signal path", "not checked")
    assert "reports no events" in finding.what
    assert "ended the loop with 75, which says that it saved, after 4.0 s of the 30 s" in finding.what


@pytest.mark.parametrize(("exits", "how"), [({0: 0}, "ended with status 0 after 4.0 s"), ({}, "did not end")])
def test_a_loop_that_ends_in_another_way_is_a_warning_that_names_what_was_expected(
    exits: dict[int, int], how: str
) -> None:
    finding = explained(
        trial([WRAPPER, PYTHON], exits, loop=True, in_time=bool(exits)), "signal path", "warning"
    )
    assert f"the loop {how}. A status of 75, 143, 42 within 30 s is expected" in finding.what
    assert "--restart-code" in finding.cure


def test_a_loop_that_never_listened_is_a_warning() -> None:
    finding = explained(trial([], {}, loop=True, trains=False, began_after=60.0), "callback", "warning")
    assert "ran for 60 s, and no PreemptionCheckpointHandler of keras_preempt began to listen" in finding.what


def test_what_is_certain_of_a_loop_is_a_problem_all_the_same() -> None:
    findings = Findings()
    explain_trial(trial([WRAPPER, PYTHON], {0: -15}, loop=True, left=["python (20)"]), findings)
    assert [(finding.check, finding.level) for finding in findings.all] == [("left behind", "problem")]
    blocked = Process(20, "python loop.py", 10, blocked=True, ignored=False, caught=True, first=False)
    explained(trial([blocked], {}, loop=True, in_time=False), "SIGTERM")
    explained(trial([PYTHON], {0: EXIT_NOT_SAVED}, loop=True), "save")


def test_a_fit_in_a_script_that_also_names_the_handler_is_followed_by_its_events() -> None:
    seen = trial([PYTHON], {0: EXIT_RESTART}, loop=True)
    seen.watched.reported = [{"event": "start", "time": 0.0, "member": 0, "incarnation": 1}]
    finding = explained(seen, "signal path")
    assert "the job saved nothing and ended with status 75" in finding.what
