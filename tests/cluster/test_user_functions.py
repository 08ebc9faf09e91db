"""The functions of a TerminationConfig in a real fit: called when it is said, and harmless whatever they do."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.noticed_fit import ExpectedError, NoticedFit, Outcome, sigterm

pytestmark = pytest.mark.usefixtures("nowhere", "everything_is_given_back")


def test_a_watcher_that_returns_true_ends_the_fit_as_a_signal_does(
    job: NoticedFit, undisturbed_fit: Outcome
) -> None:
    doomed = threading.Event()

    def come() -> None:
        doomed.set()
        job.await_told("notice")

    outcome = job.fit({(1, 1): come}, termination={"termination_watcher_fn": doomed.is_set})
    assert outcome.ended == "Preempted"
    assert [notice["source"] for notice in job.told("notice")] == ["termination_watcher_fn"]
    assert [step[:2] for step in outcome.steps][-1] == (1, 1)
    job.fit()
    job.assert_nothing_lost(undisturbed_fit)


def fail(over: threading.Event) -> None:
    raise ExpectedError("the watcher fails")


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (fail, "it raised ExpectedError"),
        (lambda over: over.wait(60) and False, None),
        (lambda over: "soon", "Received: 'soon'"),
    ],
    ids=["raises", "blocks", "nonsense"],
)
def test_a_watcher_that_fails_disturbs_nothing_and_signals_are_heard(
    does: Callable[[threading.Event], object],
    said: str | None,
    job: NoticedFit,
    undisturbed_fit: Outcome,
    caplog: pytest.LogCaptureFixture,
) -> None:
    called, over = threading.Event(), threading.Event()

    def watcher() -> object:
        called.set()
        return does(over)

    config = {"termination_watcher_fn": watcher}
    actions = {(0, 1): lambda: called.wait(60), (1, 1): sigterm}
    assert job.fit(actions, termination=config).ended == "Preempted"
    assert job.fit(termination=config).ended == "finished"
    if said is not None:
        assert said in caplog.text
    over.set()  # Python cannot end a thread that is inside somebody's function.
    for thread in threading.enumerate():
        if thread.name.startswith("keras_preempt"):
            thread.join(60)
    assert [notice["source"] for notice in job.told("notice")] == ["signal"]
    job.assert_nothing_lost(undisturbed_fit)


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
def test_an_exit_fn_is_called_with_the_checkpoint_safe_and_all_given_back(
    fails: bool, job: NoticedFit, undisturbed_fit: Outcome
) -> None:
    seen: list[Any] = []

    def leave() -> None:
        threads = [one.name for one in threading.enumerate() if one.name.startswith("keras_preempt")]
        seen.append((threads, signal.getsignal(signal.SIGTERM), job.checkpoints))
        if fails:
            raise ExpectedError("exit_fn fails")

    earlier = signal.getsignal(signal.SIGTERM)
    outcome = job.fit({(1, 4): sigterm}, termination={"exit_fn": leave})
    assert outcome.ended == ("ExpectedError" if fails else "Preempted")
    assert seen == [([], earlier, ["step-00000011"])]
    job.fit()
    job.assert_nothing_lost(undisturbed_fit)


@pytest.mark.parametrize("fails", [False, True], ids=["works", "raises"])
@pytest.mark.parametrize(
    ("at", "grace", "ended", "checkpoint"),
    [
        ((0, 3), 3600.0, "finished", "step-00000004"),
        ((2, 0), None, "Preempted", "step-00000013"),
    ],
    ids=["an hour", "at once"],
)
def test_save_fn_is_called_after_the_checkpoint_that_answers_a_notice(
    at: tuple[int, int],
    grace: float | None,
    ended: str,
    checkpoint: str,
    fails: bool,
    job: NoticedFit,
    undisturbed_fit: Outcome,
    caplog: pytest.LogCaptureFixture,
) -> None:
    saved: list[tuple[str, bool]] = []

    def save() -> None:
        saved.append((job.checkpoints[-1], threading.current_thread() is threading.main_thread()))
        if fails:
            raise ExpectedError("save_fn fails")

    config = {"save_fn": save, "grace_period": grace}
    assert job.fit({at: sigterm}, termination=config).ended == ended
    job.fit(termination=config)
    assert saved == [(checkpoint, True)], "called without a notice"
    job.assert_nothing_lost(undisturbed_fit)
    errors = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    assert [("save_fn has failed" in error) for error in errors] == [True] * fails
