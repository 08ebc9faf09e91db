"""Signals that come at moments in which a fit is not in a step, with and without time to train on.

test_restoring_together.py has more, with several workers; test_notices_fit.py has metadata servers.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from keras_preempt.agreement.member import Member
from keras_preempt.agreement.messages import At
from keras_preempt.notices import Notice
from keras_preempt.training.run.runtime import Runtime
from keras_preempt.training.save.session import Session
from tests.cluster.noticed_fit import PATIENCE, STEPS, ExpectedError, Model, NoticedFit, Outcome, sigterm

GRACE = {"at once": 0.0, "an hour": 3600.0}
grace = pytest.mark.parametrize("grace", GRACE.values(), ids=GRACE)


pytestmark = pytest.mark.usefixtures("nowhere")


def fail() -> None:
    raise ExpectedError("the machine is gone")


@grace
def test_a_notice_while_the_step_is_traced_is_acted_on_after_that(
    grace: float, tmp_path: Path, undisturbed_fit: Outcome
) -> None:
    """It is traced as training begins, and the first step uses that."""
    struck = []

    def loss(y: Any, prediction: Any) -> Any:
        if not struck:
            struck.append(True)
            sigterm()
        return tf.reduce_mean(tf.square(y - prediction), axis=-1)

    job = NoticedFit(tmp_path / "run", model=Model(loss=loss))

    def saved_and_gone() -> None:
        job.await_told("commit")  # Written beside training, and given up where that fails.
        fail()

    outcome = job.fit({(0, 4): saved_and_gone}, termination={"grace_period": grace})
    assert struck
    assert outcome.ended == ("ExpectedError" if grace else "Preempted")
    assert len(outcome.steps) == (4 if grace else 0)
    assert job.checkpoints == ["step-00000000"]
    del outcome.steps[:]  # What was trained after the only save.
    job.fit()
    job.assert_nothing_lost(undisturbed_fit)


@grace
def test_a_notice_while_other_callbacks_begin_is_acted_on_at_the_first_boundary(
    grace: float, job: NoticedFit, undisturbed_fit: Outcome
) -> None:
    outcome = job.fit(on_begin=sigterm, termination={"grace_period": grace})
    assert (outcome.ended, len(outcome.steps)) == (("finished", 18) if grace else ("Preempted", 0))
    job.fit()
    job.assert_nothing_lost(undisturbed_fit)


@grace
def test_a_notice_while_a_checkpoint_is_restored_spoils_nothing(
    grace: float, job: NoticedFit, undisturbed_fit: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save before the first step would hold what Keras has reset and what is not put back yet."""
    job.fit({(1, 2): sigterm})
    restore = Session.restore

    def struck(session: Session, *arguments: Any) -> str:
        sigterm()
        job.await_told("notice", 2)
        return restore(session, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "restore", struck)
        outcome = job.fit({(1, 5): fail}, termination={"grace_period": grace})
    assert (outcome.ended, len(outcome.steps)) == (("ExpectedError", 2) if grace else ("Preempted", 0))
    outcome.steps.clear()  # Not saved: there was an hour.
    assert job.checkpoints == ["step-00000009"]
    job.fit()
    assert job.told("restore")[-1]["checkpoint"] == job.told("exit")[0]["saved"]
    job.assert_nothing_lost(undisturbed_fit)


def test_a_boundary_that_is_entered_while_the_answer_is_given_is_the_one_to_save_at(
    job: NoticedFit, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect, notify, answer = Runtime.expect, Runtime.notify, Member.answer
    fits: list[Runtime] = []
    told, asked = threading.Event(), threading.Event()

    def struck() -> None:
        sigterm()
        assert asked.wait(PATIENCE)  # Until then this is still the step.

    def announced(runtime: Runtime) -> None:
        fits.append(runtime)
        expect(runtime)
        told.set()

    def heard(runtime: Runtime, notice: Notice) -> None:
        assert told.wait(
            PATIENCE
        )  # On a busy machine the listener may come before the main thread's own handler.
        notify(runtime, notice)

    def late(member: Member, entered: int) -> At:
        (fit,) = fits
        asked.set()
        limit = time.monotonic() + PATIENCE
        while fit.entered == entered and time.monotonic() < limit:
            time.sleep(0.001)  # The main thread counts on without telling anybody.
        assert member.held is None  # It waits for the lock.
        return answer(member, fit.entered)

    monkeypatch.setattr(Runtime, "expect", announced)
    monkeypatch.setattr(Runtime, "notify", heard)
    monkeypatch.setattr(Member, "answer", late)
    assert job.fit({(1, 2): struck}).ended == "Preempted"
    assert job.checkpoints == [f"step-{STEPS + 3:08d}"]
