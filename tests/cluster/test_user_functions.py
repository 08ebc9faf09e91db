"""The functions of a TerminationConfig in a real fit: called when it is said, and harmless whatever they do.

| function | does | test |
|---|---|---|
| termination_watcher_fn | returns True | test_a_watcher_that_returns_true_... |
| | raises, blocks, returns nonsense | test_a_watcher_that_fails_... |
| exit_fn | returns, raises | test_an_exit_fn_that_... |
| save_fn | counts, raises | test_save_fn_... |
"""

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


class Watcher:
    """A function that does as it is told, and says when it was called."""

    def __init__(self, does: Callable[[threading.Event], object]) -> None:
        self.called = threading.Event()
        self.over = threading.Event()
        self._does = does

    def __call__(self) -> Any:
        self.called.set()
        return self._does(self.over)


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
    watcher = Watcher(does)
    config = {"termination_watcher_fn": watcher}
    called = lambda: watcher.called.wait(60)  # noqa: E731
    assert job.fit({(0, 1): called, (1, 1): sigterm}, termination=config).ended == "Preempted"
    assert job.fit(termination=config).ended == "finished"
    if said is not None:
        assert said in caplog.text
    watcher.over.set()  # Python cannot end a thread that is inside somebody's function.
    for thread in threading.enumerate():
        if thread.name.startswith("keras_preempt"):
            thread.join(60)
    assert [notice["source"] for notice in job.told("notice")] == ["signal"]
    job.assert_nothing_lost(undisturbed_fit)


def test_an_exit_fn_that_returns_lets_fit_raise_preempted_with_all_given_back(
    job: NoticedFit, undisturbed_fit: Outcome
) -> None:
    seen: list[Any] = []

    def leave() -> None:
        threads = [one.name for one in threading.enumerate() if one.name.startswith("keras_preempt")]
        seen.append((threads, signal.getsignal(signal.SIGTERM), job.checkpoints))

    earlier = signal.getsignal(signal.SIGTERM)
    assert job.fit({(1, 4): sigterm}, termination={"exit_fn": leave}).ended == "Preempted"
    assert seen == [([], earlier, ["step-00000011"])]
    job.fit()
    job.assert_nothing_lost(undisturbed_fit)


def test_an_exit_fn_that_raises_is_heard_and_the_checkpoint_is_safe(
    job: NoticedFit, undisturbed_fit: Outcome
) -> None:
    def leave() -> None:
        raise ExpectedError("exit_fn fails")

    assert job.fit({(1, 4): sigterm}, termination={"exit_fn": leave}).ended == "ExpectedError"
    assert job.checkpoints == ["step-00000011"]
    job.fit()
    job.assert_nothing_lost(undisturbed_fit)


@pytest.mark.parametrize("fails", [False, True], ids=["works", "raises"])
def test_save_fn_is_called_after_every_checkpoint_that_answers_a_notice(
    fails: bool, job: NoticedFit, undisturbed_fit: Outcome, caplog: pytest.LogCaptureFixture
) -> None:
    """With an hour: at the notice; then, once the machine is said to go at once, at the end."""
    saved: list[tuple[str, bool]] = []

    def save() -> None:
        saved.append((job.checkpoints[-1], threading.current_thread() is threading.main_thread()))
        if fails:
            raise ExpectedError("save_fn fails")

    config = {"save_fn": save, "grace_period": 3600.0}
    assert job.fit({(0, 3): sigterm}, termination=config).ended == "finished"
    assert saved == [("step-00000004", True)]
    job.outcomes.clear()

    again = NoticedFit(job.directory.with_name("again"), model=job.model)
    config = {"save_fn": lambda: saved.append((again.checkpoints[-1], True)) or save_fails(fails)}
    assert again.fit({(2, 0): sigterm}, termination=config).ended == "Preempted"
    assert saved[1:] == [("step-00000013", True)]
    again.fit(termination=config)
    assert len(saved) == 2, "called without a notice"
    again.assert_nothing_lost(undisturbed_fit)
    errors = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    assert [("save_fn has failed" in error) for error in errors] == [True] * (2 if fails else 0)


def save_fails(fails: bool) -> None:
    if fails:
        raise ExpectedError("save_fn fails")
