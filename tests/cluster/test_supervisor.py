"""Restarts of a local cluster, with real but light processes: no TensorFlow in them."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from keras_preempt.cluster import Outcome, RestartPolicy, Supervisor, WorkerExit, judge


def supervise(path: Path, workers: int = 2, expected=lambda incarnation: None, **policy) -> tuple:
    lines: list[str] = []
    said: list[str] = []
    supervisor = Supervisor(
        workers,
        [sys.executable, str(path)],
        policy=RestartPolicy(**policy),
        say=said.append,
        log=lambda index, line: lines.append(f"w{index} {line}"),
        expected=expected,
    )
    return supervisor.run(), lines, said


def test_the_whole_cluster_restarts_after_a_preemption(worker_script):
    path = worker_script("print('start', incarnation)\nsys.exit(75 if incarnation < 2 and index == 1 else 0)")
    report, lines, _ = supervise(path)
    assert report.exit_code == 0
    assert [i.verdict.outcome for i in report.incarnations] == [Outcome.PREEMPTED] * 2 + [Outcome.FINISHED]
    assert sorted(lines) == sorted(f"w{w} start {i}" for i in range(3) for w in range(2))
    assert "incarnations=3 preemptions=2 failures=0" in report.summary


def test_a_worker_terminated_before_it_listens_is_a_preemption_and_its_peers_failures_are_consequences(
    worker_script,
):
    body = """
if incarnation: sys.exit(0)
if index == 0: os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.5)
sys.exit(1)
"""
    report, _, said = supervise(worker_script(body))
    assert report.exit_code == 0
    assert (report.count(Outcome.PREEMPTED), report.count(Outcome.FAILED)) == (1, 0)
    assert any("w1 failed (exit code 1) after w0 was killed: a consequence" in line for line in said)


def test_a_crash_ends_the_job_with_its_code(worker_script):
    report, _, said = supervise(worker_script("if index: sys.exit(3)\ntime.sleep(600)"), failure_grace=0.1)
    assert (report.exit_code, len(report.incarnations)) == (3, 1)
    assert any("w0 was ended by the launcher" in line for line in said)


STATUS = """
import json, pathlib
folder = pathlib.Path(os.environ["KERAS_PREEMPT_STATUS_DIR"])
def tell(name, **what):
    folder.joinpath(f"{name}-{index}.json").write_text(json.dumps(what))
tell("worker", exit_code=75, saved=True, step=3)
"""


@pytest.mark.parametrize(("after", "outcome"), [("", Outcome.FAILED), ("tell('fit')\n", Outcome.PREEMPTED)])
def test_a_worker_that_has_said_its_status_and_goes_on_is_ended_unless_it_trains_again(
    after, outcome, worker_script
):
    body = f"{STATUS}\ntime.sleep(0.1)\n{after}time.sleep(600 * (not {after!r}) + 3)\nsys.exit(75)"
    report, _, said = supervise(
        worker_script(body), workers=1, said_grace=0.5, max_restarts_without_progress=0
    )
    assert report.incarnations[0].verdict.outcome is outcome
    assert report.incarnations[0].stuck == ({0: 75} if outcome is Outcome.FAILED else {})
    assert any("has not ended within 0.5 s since. Ending it." in line for line in said) == (not after)


def test_nobody_starts_again_what_ctrl_c_has_ended(worker_script):
    path = worker_script("signal.signal(signal.SIGINT, signal.SIG_DFL)\nos.kill(os.getpid(), signal.SIGINT)")
    report, _, said = supervise(path, workers=1, max_failures=3)
    assert (report.exit_code, len(report.incarnations)) == (130, 1)
    assert "w0 was interrupted (SIGINT)" in said
    assert report.summary.startswith("interrupted: incarnations=1 preemptions=0 failures=0")


def test_a_failure_that_was_to_be_expected_does_not_count(worker_script):
    path = worker_script(
        "if incarnation < 2: os.kill(os.getpid(), signal.SIGKILL)\nsys.exit(3 * (incarnation - 2))"
    )
    report, _, said = supervise(
        path,
        1,
        lambda incarnation: "as planned" if incarnation.number < 2 else None,
        max_restarts_without_progress=0,
    )
    assert (report.exit_code, report.expected) == (0, (0, 1))
    assert "incarnations=3 preemptions=0 killed=2 failures=0" in report.summary
    assert "incarnation 1: as planned: starting again" in said


# A later fit has a model and a directory of its own, whose steps begin at 0.
LATER_FIT = """
told = [("first", 7), ("first", 9), ("second", 3), ("second", 5)]
directory, step = told[incarnation]
status(directory=directory, step=step, saved=True)
sys.exit(75 if incarnation < 3 else 0)
"""
TWICE, NEVER = ({"max_restarts_without_progress": times} for times in (2, 0))


LOSES_A_WORKER = """
if incarnation == {last}: sys.exit(0)
status(last_saved={saved}, step=9)
if index == 1: os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.2)
sys.exit(69)
"""


@pytest.mark.parametrize(
    ("body", "policy", "status", "starts", "failures"),
    [
        pytest.param(*rest, id=name)
        for name, *rest in [
            ("killed for its memory", "os.kill(os.getpid(), signal.SIGKILL)", {}, 137, 1, 1),
            ("forgiven", "sys.exit(3 if incarnation < 2 else 0)", {"max_failures": 2}, 0, 3, 2),
            ("not forgiven", "sys.exit(3 if incarnation < 2 else 0)", {"max_failures": 1}, 3, 2, 2),
            # One that got to step 7, and three that did not get beyond it.
            ("no progress", "status(step=7, saved=True)\nsys.exit(75)", TWICE, 1, 4, 0),
            ("not saved", "status(step=incarnation + 1, saved=False)\nsys.exit(75)", NEVER, 1, 1, 0),
            ("lost, nothing saved", LOSES_A_WORKER.format(last=1, saved=0), {}, 137, 1, 1),
            ("lost, and saved", LOSES_A_WORKER.format(last=1, saved=5), {}, 0, 2, 1),
            ("lost again and again", LOSES_A_WORKER.format(last=9, saved=5), TWICE, 1, 4, 4),
            ("a later fit of the script", LATER_FIT, NEVER, 0, 4, 0),
        ]
    ],
)
def test_a_job_is_started_again_as_often_as_its_policy_allows(
    body, policy, status, starts, failures, worker_script
):
    report, _, _ = supervise(worker_script(body), **policy)
    assert (report.exit_code, len(report.incarnations)) == (status, starts)
    assert report.count(Outcome.FAILED) == failures
    assert ("without progress" in report.reason) == (status == 1)


def test_a_status_file_cut_short_is_no_information(worker_script):
    body = """
path = os.path.join(os.environ["KERAS_PREEMPT_STATUS_DIR"], "worker-0.json")
open(path, "w").write('{"step": 5, "sav')
"""
    report, _, _ = supervise(worker_script(body), workers=1)
    assert (report.exit_code, report.incarnations[0].statuses) == (0, {})


def test_taken_ports_are_replaced_without_counting_a_failure_of_the_job(worker_script):
    body = """
if incarnation == 0:
    print("bind: Address already in use")
    sys.exit(1)
"""
    report, _, said = supervise(worker_script(body))
    assert report.exit_code == 0
    assert any("other ports" in line for line in said)


def test_an_incarnation_that_takes_too_long_is_ended(worker_script):
    report, _, said = supervise(worker_script("time.sleep(600)"), incarnation_timeout=0.5, failure_grace=5)
    assert report.exit_code == 124
    assert any("within 0.5 s" in line for line in said)


def exits(*codes: int | tuple[int, bool]) -> list[WorkerExit]:
    """Exits in the order given; a pair is (code, ended by the launcher)."""
    pairs = [code if isinstance(code, tuple) else (code, False) for code in codes]
    return [WorkerExit(index, code, float(index), by) for index, (code, by) in enumerate(pairs)]


TERM, KILL, INT, ABORT = -signal.SIGTERM, -signal.SIGKILL, -signal.SIGINT, -signal.SIGABRT


@pytest.mark.parametrize(
    ("ended", "outcome"),
    [
        (exits(0, 0), Outcome.FINISHED),
        (exits(75, 75), Outcome.PREEMPTED),
        (exits(75, 0), Outcome.PREEMPTED),
        (exits(TERM, 0), Outcome.PREEMPTED),
        (exits(143, 1), Outcome.PREEMPTED),
        (exits(TERM, 1, (TERM, True)), Outcome.PREEMPTED),
        # The grace period ended for one, the survivors saved and left.
        (exits(KILL, 75), Outcome.PREEMPTED),
        (exits(75, 1), Outcome.FAILED),
        (exits(1, 75), Outcome.FAILED),
        (exits(1, TERM), Outcome.FAILED),
        (exits(1, (TERM, True)), Outcome.FAILED),
        (exits(KILL, 1), Outcome.FAILED),
        # Memory ran out, and the survivor saved only because the launcher ended it.
        (exits(KILL, (75, True)), Outcome.FAILED),
        (exits((75, True), (75, True)), Outcome.FAILED),
        # It has lost a worker, which had been told to go, or which fails by itself a moment later.
        (exits(69, 75), Outcome.PREEMPTED),
        (exits(KILL, 69, 75), Outcome.PREEMPTED),
        (exits(TERM, 69), Outcome.PREEMPTED),
        (exits(69, TERM), Outcome.PREEMPTED),
        (exits(69, 3), Outcome.FAILED),
        (exits(KILL, 69), Outcome.FAILED),
        (exits(69, 69), Outcome.FAILED),
        # JAX aborts who has lost process 0, or is left behind by one that has been preempted.
        (exits(KILL, ABORT), Outcome.FAILED),
        (exits(TERM, ABORT), Outcome.PREEMPTED),
        (exits(75, ABORT), Outcome.PREEMPTED),
        (exits(KILL, 75, 134), Outcome.PREEMPTED),
        (exits(ABORT, 75), Outcome.FAILED),
        (exits(INT, INT), Outcome.INTERRUPTED),
        (exits(INT, 69), Outcome.INTERRUPTED),
        (exits(130, 1), Outcome.INTERRUPTED),
        (exits(3, INT), Outcome.FAILED),
    ],
)
def test_the_first_death_decides_what_an_incarnation_came_to(ended, outcome):
    assert judge(ended, [75]).outcome is outcome


@pytest.mark.parametrize(
    ("ended", "cause", "lost"),
    [
        (exits(KILL, 69), 0, True),
        (exits(KILL, (69, True)), 0, True),
        (exits(69, KILL), 1, True),
        (exits(69, 69), 0, True),
        (exits(69, 0), 0, True),
        (exits(KILL, KILL), 0, False),  # Nobody is left who would say so: memory may have run out.
        (exits(KILL, 1), 0, False),
        (exits(69, 3), 1, False),
        (exits(-signal.SIGSEGV, 69), 0, False),
        # Survivors on JAX, in whatever order their ends are seen.
        (exits(KILL, ABORT), 0, True),
        (exits(ABORT, KILL), 1, True),
        (exits(KILL, 134, ABORT), 0, True),
        (exits(69, ABORT), 0, True),
        (exits(KILL, (ABORT, True)), 0, True),
        # Nobody else had ended: the program has aborted itself, and its peers have lost it.
        (exits(ABORT), 0, False),
        (exits(ABORT, ABORT), 0, False),
        (exits(ABORT, 69), 0, False),
        (exits(ABORT, (KILL, True)), 0, False),
        (exits(0, ABORT), 1, False),
        (exits(1, ABORT), 0, False),
        (exits(-signal.SIGSEGV, ABORT), 0, False),
    ],
)
def test_the_loss_of_a_worker_is_told_apart_from_an_error_of_the_program(ended, cause, lost):
    verdict = judge(ended, [75])
    assert verdict.outcome is Outcome.FAILED
    assert (verdict.cause.index, verdict.lost) == (cause, lost)


@pytest.mark.parametrize(
    ("ended", "unsaid", "lost", "survivors"),
    [
        (exits(KILL, 1), {1}, True, [1]),
        (exits(1, KILL), {0}, True, [0]),
        (exits(KILL, 1), {0}, False, []),  # Its training has said how it ended, so Python has ended it.
        (exits(KILL, 1, 1), {1}, False, [1]),
        (exits(KILL, 3), {1}, False, []),
        (exits(1, 1), {0, 1}, False, []),
    ],
)
def test_a_survivor_that_an_older_jax_has_ended_is_known_by_what_it_has_not_said(
    ended, unsaid, lost, survivors
):
    verdict = judge(ended, [75], unsaid)
    assert (verdict.outcome, verdict.lost) == (Outcome.FAILED, lost)
    said = [f"w{index} has lost another worker (exit code 1)" for index in survivors]
    assert [note for note in verdict.notes if "has lost" in note] == said


def test_an_aborted_survivor_is_said_to_have_lost_another_worker():
    assert judge(exits(KILL, ABORT), [75]).notes == (
        "w0 was killed (SIGKILL)",
        "w1 has lost another worker (SIGABRT)",
    )
    assert judge(exits(ABORT), [75]).notes == ("w0 was killed (SIGABRT)",)
    assert judge(exits(KILL, 69), [75]).notes[1] == "w1 has lost another worker (exit code 69)"


def test_143_is_a_preemption_also_when_it_is_the_restart_code():
    assert judge(exits(143, 143), [143]).outcome is Outcome.PREEMPTED
