"""What the user says about termination, and how a preempted fit ends."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable

from keras_preempt.notices.signals import parse_signals

EXIT_RESTART = 75
"""EX_TEMPFAIL of sysexits.h: below 128, so never mistaken for a signal; systemd and LSF recipes use it."""

EXIT_NOT_SAVED = 74
"""EX_IOERR of sysexits.h: preempted, and the checkpoint could not be committed."""


class Preempted(RuntimeError):
    """Raised out of `fit` when the checkpoint is committed and `exit_fn` has returned."""


class TerminationConfig:
    """How notices reach the job, and how it ends once its checkpoint is safe.

    Args:
        termination_watcher_fn: A later release: a function that is called again and again and returns True
            when a notice is there.
        exit_fn: Called without arguments after the checkpoint is committed. If it returns, `Preempted` is
            raised out of `fit`. None raises SystemExit(exit_code).
        grace_period: A later release: seconds between the notice and the end. Only 0 (save and exit at
            once) works now, and is what None means.
        save_fn: A later release: how a checkpoint is written.
        signals: Names of the signals that announce the end of this process.
        exit_code: The exit status after a preemption; 75 if None.

    Raises:
        ValueError: A signal is unknown or cannot be caught, or the exit code is out of range.
        NotImplementedError: An argument of a later release is given.
    """

    def __init__(
        self,
        termination_watcher_fn: Callable[[], bool] | None = None,
        exit_fn: Callable[[], object] | None = None,
        grace_period: float | None = None,
        save_fn: Callable[..., object] | None = None,
        *,
        signals: Iterable[str | int | signal.Signals] = ("SIGTERM",),
        exit_code: int | None = None,
    ) -> None:
        for name, value in (("termination_watcher_fn", termination_watcher_fn), ("save_fn", save_fn)):
            if value is not None:
                raise NotImplementedError(
                    f"Expected {name}=None, since this release does not have it yet. Received: {value!r}. "
                    "Leave it out; notices come as signals for now."
                )
        if grace_period:
            raise NotImplementedError(
                "Expected grace_period to be None or 0 (save and exit at once), since this release has no "
                f"countdown yet. Received: {grace_period!r}."
            )
        if exit_fn is not None and not callable(exit_fn):
            raise ValueError(f"Expected exit_fn to be a function without arguments. Received: {exit_fn!r}.")
        if exit_code is not None and (isinstance(exit_code, bool) or not 1 <= int(exit_code) <= 255):
            raise ValueError(
                f"Expected exit_code to be an integer from 1 to 255, since 0 says that training finished. "
                f"Received: {exit_code!r}."
            )
        self.exit_fn = exit_fn
        self.signals = parse_signals(signals)
        self.exit_code = EXIT_RESTART if exit_code is None else int(exit_code)
