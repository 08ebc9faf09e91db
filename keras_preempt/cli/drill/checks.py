"""Checks what the options of a drill mean together."""

from __future__ import annotations

import click

from keras_preempt.notices.signals import parse_signals
from keras_preempt.training.schedule import parse_text

__all__ = ["check_combinations", "checked_signal"]


def checked_signal(name: str) -> str:
    """Returns the full name of the signal that is the notice.

    Raises:
        click.UsageError: it is none that a script can listen for.
    """
    if name.upper() in ("KILL", "SIGKILL", "9"):
        raise click.UsageError(
            "Expected --signal to be one that a script can listen for. Received: SIGKILL. Use --kill."
        )
    try:
        (number,) = parse_signals((name,))
    except ValueError as error:
        raise click.UsageError(f"--signal: {error}") from None
    return number.name


def check_combinations(
    kill: bool,
    grace: float | None,
    save_every: str | None,
    faults: str | None,
    keep: str | None,
) -> None:
    """Refuses options of a drill that exclude each other.

    Raises:
        click.UsageError: they do; or the schedule of saves is none.
    """
    if kill and grace is not None:
        raise click.UsageError(
            "Expected --kill or --grace. Received: both, and a kill comes without a grace period. Leave one out."
        )
    if faults is not None and keep is not None:
        raise click.UsageError(
            "Expected --gcs-faults or --keep. Received: both, and the bucket with faults ends with the drill. "
            "Leave one out."
        )
    if save_every is not None:
        try:
            parse_text(save_every)
        except ValueError as error:
            raise click.UsageError(f"--save-every: {error}") from None
