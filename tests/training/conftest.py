"""What the tests of this folder have in common."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def everything_that_is_said_is_captured(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "keras_preempt")
