"""The platform, the notices that will be heard on it, the grace that it gives, and how SIGTERM arrives there."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from keras_preempt.cli.doctor.finding import Tell, not_checked, ok, problem, warning
from keras_preempt.notices.cloud import UNKNOWN_GRACE, Grace
from keras_preempt.notices.detection import Detection
from keras_preempt.notices.platform import GENERIC_NAME, MACHINES, SCHEDULERS, Platform
from keras_preempt.notices.termination import TerminationConfig, complete
from keras_preempt.process import environment

__all__ = ["Grace", "check_platform", "check_sigterm", "grace_of", "is_ignored", "say_without_command"]

UNBLOCK = "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])"
"""What makes a process hear SIGTERM again that was started with it blocked."""

RESET = "signal.signal(signal.SIGTERM, signal.SIG_DFL)"
"""What makes a process hear SIGTERM again that was started with it ignored."""


def grace_of(given: float | None, platform: Platform) -> Grace:
    """The time that a save can count on.

    Args:
        given: What the user says, in seconds; None to take what the environment or the platform says.
        platform: Where this is.
    """
    if given is not None:
        return Grace(given, "--grace")
    termination = complete(TerminationConfig(), platform)
    if termination.grace_period is not None:
        return Grace(termination.grace_period, environment.GRACE_PERIOD)
    rows = {**SCHEDULERS, **MACHINES}
    known = [rows[name].grace for name in platform.name.split("+") if name in rows]
    return min(known or [UNKNOWN_GRACE])


def check_platform(tell: Tell, given: float | None) -> tuple[Platform, Grace] | None:
    """Says where this is, what is heard there, and how much time there is; None if a variable is wrong."""
    try:
        platform = Detection().result()
        termination = complete(TerminationConfig(), platform)
        grace = grace_of(given, platform)
    except ValueError as error:
        tell(
            problem(
                "platform",
                str(error),
                "Correct that variable or unset it; training would stop with this error.",
            )
        )
        return None
    tell(ok("platform", termination.describe()))
    if platform.name == GENERIC_NAME:
        tell(
            ok(
                "notices",
                "No cloud and no scheduler was recognised, so SIGTERM is the only notice that is heard. If this is a "
                f"machine that its cloud takes back, set {environment.PLATFORM}: docs/termination.md has the names.",
            )
        )
    if grace.source == "--grace":
        tell(ok("grace", f"{grace.seconds:g} s from a notice to the end, as --grace says."))
    else:
        tell(
            ok(
                "grace",
                f"{grace.seconds:g} s from a notice to the end are counted on: {grace.source}. If yours is another, "
                "pass --grace.",
            )
        )
    return platform, grace


def is_ignored() -> bool:
    """Whether this process was started with SIGTERM ignored, as whatever it starts will be."""
    return signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def is_blocked() -> bool:
    """Whether SIGTERM is blocked in this thread."""
    return signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def check_sigterm(
    tell: Tell, ignored: Callable[[], bool] = is_ignored, blocked: Callable[[], bool] = is_blocked
) -> None:
    """Looks at what became of SIGTERM before this process was started: the job's process inherits the same."""
    if blocked():
        tell(
            problem(
                "SIGTERM",
                "SIGTERM is blocked where this command was started, and so it is in every process started here: no "
                "notice by signal would ever arrive.",
                f"Find who blocks it (the launcher or wrapper), or begin the script with `import signal; {UNBLOCK}`.",
            )
        )
    elif ignored():
        tell(
            problem(
                "SIGTERM",
                "SIGTERM is ignored where this command was started, and so it is in every process started here until "
                "fit listens: before and after fit a notice does nothing, and the process is killed.",
                "Take away the `trap '' TERM` (or nohup-like wrapper) around it, or start the script through "
                "`env --default-signal=TERM python train.py`.",
            )
        )
    else:
        tell(ok("SIGTERM", "SIGTERM is neither blocked nor ignored where this command was started."))
    if os.getpid() == 1:
        tell(
            warning(
                "PID 1",
                "This is process 1 of a container. The kernel drops a SIGTERM to process 1 that it does not handle: "
                "one that comes before fit listens does nothing.",
                "Start the container with an init (docker run --init, or tini); a shell there must end with `exec`.",
            )
        )


def say_without_command(tell: Tell) -> None:
    """Says what only a command can show."""
    tell(
        not_checked(
            "signal path",
            "Whether SIGTERM reaches the training process, and whether it saves in time. Add the job's own command: "
            "keras-preempt doctor DIR -- COMMAND.",
        )
    )
