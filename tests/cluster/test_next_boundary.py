"""A signal in a step is acted on when that step ends, also if it ends at the moment in which the workers agree."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from keras_preempt.agreement.member import Member
from keras_preempt.agreement.messages import At
from keras_preempt.notices import Notice
from keras_preempt.training.hearing import Hearing
from tests.cluster.noticed_fit import PATIENCE, STEPS, Model, NoticedFit, sigterm

pytestmark = pytest.mark.usefixtures("nowhere")


def test_a_boundary_that_is_entered_while_the_answer_is_given_is_the_one_to_save_at(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect, notify, answer = Hearing.expect, Hearing.notify, Member.answer
    fits: list[Hearing] = []
    told, asked = threading.Event(), threading.Event()

    def struck() -> None:
        sigterm()
        assert asked.wait(PATIENCE)  # Until then this is still the step.

    def announced(hearing: Hearing) -> None:
        fits.append(hearing)
        expect(hearing)
        told.set()

    def heard(hearing: Hearing, notice: Notice) -> None:
        assert told.wait(
            PATIENCE
        )  # On a busy machine the listener may come before the main thread's own handler.
        notify(hearing, notice)

    def late(member: Member, entered: int) -> At:
        (fit,) = fits
        asked.set()
        limit = time.monotonic() + PATIENCE
        while fit.entered == entered and time.monotonic() < limit:
            time.sleep(0.001)  # The main thread counts on without telling anybody.
        assert member.held is None  # It waits for the lock.
        return answer(member, fit.entered)

    monkeypatch.setattr(Hearing, "expect", announced)
    monkeypatch.setattr(Hearing, "notify", heard)
    monkeypatch.setattr(Member, "answer", late)
    job = NoticedFit(tmp_path / "run", model=model)
    assert job.fit({(1, 2): struck}).ended == "Preempted"
    assert job.checkpoints == [f"step-{STEPS + 3:08d}"]
