"""Whether a process says at its end that training is over: only if that is all that there was to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_preempt.training.run.several_fits import EndedFits

ROOT = Path(__file__).parents[2]

ENDED = "from keras_preempt.training.run.several_fits import ended_fits\nended_fits.had_ended('run', 3)\n"
LOGGED = "import logging\nlogging.basicConfig(level=logging.INFO)\n"


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        ("", True),
        ("import sys; sys.exit(0)", True),
        ("raise ValueError('the list is empty')", False),
        ("ended_fits.pending = True; import sys; sys.exit(75)", False),
        ("ended_fits.pending = True; ended_fits.had_ended('run', 3)", True),
    ],
)
def test_training_is_over_is_said_neither_after_a_traceback_nor_with_another_fit_pending(
    rest: str, told: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOGGED + ENDED + rest],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ("Training is over already" in done.stderr) is told, done.stderr


def test_an_error_of_an_interactive_session_before_does_not_count(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "last_type", ValueError, raising=False)
    caplog.set_level("INFO")
    EndedFits(interactive=True).had_ended("run", 3)
    assert "Training is over already" in caplog.text
