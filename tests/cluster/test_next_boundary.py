"""A signal in a step is acted on when that step ends, also if it ends at the moment in which the workers agree."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from keras_preempt.agreement.member import Member
from keras_preempt.agreement.messages import At
from keras_preempt.training.hearing import Hearing
from tests.cluster.noticed_fit import PATIENCE, STEPS, Model, NoticedFit, sigterm

pytestmark = pytest.mark.usefixtures("nowhere")


def test_a_boundary_that_is_entered_while_the_answer_is_given_is_the_one_to_save_at(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect, answer = Hearing.expect, Member.answer
    fits: list[Hearing] = []
    asked = threading.Event()

    def struck() -> None:
        sigterm()
        assert asked.wait(PATIENCE)  # Until then this is still the step.

    def told(hearing: Hearing) -> None:
        fits.append(hearing)
        expect(hearing)

    def late(member: Member, entered: int) -> At:
        (fit,) = fits
        asked.set()
        limit = time.monotonic() + PATIENCE
        while fit.entered == entered and time.monotonic() < limit:
            time.sleep(0.001)  # The main thread counts on without telling anybody.
        assert member.held is None  # It waits for the lock.
        return answer(member, fit.entered)

    monkeypatch.setattr(Hearing, "expect", told)
    monkeypatch.setattr(Member, "answer", late)
    job = NoticedFit(tmp_path / "run", model=model)
    assert job.fit({(1, 2): struck}).ended == "Preempted"
    assert job.checkpoints == [f"step-{STEPS + 3:08d}"]
