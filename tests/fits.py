"""The fits that a test's process has counted until now."""

from __future__ import annotations

from keras_preempt.training import several_fits


def forget() -> None:
    """Makes the next fit the first one of its directory, as in a new process."""
    several_fits._scripts.clear()
    several_fits.take_notices()
    several_fits._said.clear()
    several_fits.ended_fits.before_training()
