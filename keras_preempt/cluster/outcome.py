"""Why a cluster ended: finished, preempted or failed. Pure: exits in, verdict out."""

from __future__ import annotations

import enum
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from keras_preempt.cluster.local import WorkerExit

__all__ = ["KILLED_BY_TERM", "Outcome", "Verdict", "exit_status", "judge"]

#: SIGTERM reached a worker that did not handle it yet (or a shell that reports it as 128 + 15).
KILLED_BY_TERM = frozenset({-signal.SIGTERM, 128 + signal.SIGTERM})


class Outcome(enum.Enum):
    """What one incarnation of a cluster came to."""

    FINISHED = "finished"
    PREEMPTED = "preempted"
    FAILED = "failed"


@dataclass(frozen=True)
class Verdict:
    """The outcome, the exit that decided it, and one line for each worker that failed.

    Attributes:
        outcome: what it came to.
        cause: the exit that explains the others, or None if the launcher ended all of them.
        notes: lines for the log, such as "w1 failed (exit code 1) after w0 was killed".
    """

    outcome: Outcome
    cause: WorkerExit | None
    notes: tuple[str, ...]


def judge(exits: Sequence[WorkerExit], restart_codes: Collection[int]) -> Verdict:
    """Decides why a cluster ended.

    A failure that follows another worker's death is that death's consequence, since collectives fail when a
    peer is gone. So the first exit by itself that is neither a success nor a restart code decides: SIGTERM
    before the callback listened is a preemption, like a restart code; another code is a failure. SIGKILL is
    the end of a grace period if some worker left with a restart code, else a failure (often: out of memory).

    Args:
        exits: all exits, in the order in which the workers ended.
        restart_codes: exit codes that ask for a restart.
    """
    asked = [e for e in exits if e.code in restart_codes and not e.by_launcher]
    own = [e for e in exits if e.code != 0 and e.code not in restart_codes and not e.by_launcher]
    if asked:
        own = [e for e in own if e.code != -signal.SIGKILL]
    first = own[0] if own else None
    ended = tuple(e for e in exits if e.code != 0 and e.code not in restart_codes)
    if first is not None:
        outcome = Outcome.PREEMPTED if first.code in KILLED_BY_TERM else Outcome.FAILED
        return Verdict(outcome, first, tuple(_describe(e, first) for e in ended))
    if asked:
        return Verdict(Outcome.PREEMPTED, asked[0], tuple(_describe(e, asked[0]) for e in ended))
    if all(e.code == 0 for e in exits):
        return Verdict(Outcome.FINISHED, None, ())
    # Only what the launcher itself ended is left: it gave up on the incarnation.
    return Verdict(Outcome.FAILED, None, tuple(_describe(e, None) for e in ended))


def exit_status(code: int) -> int:
    """Returns an exit code as a shell shows it: 128 + n for a process that signal n ended."""
    return 128 - code if code < 0 else code


def _describe(exit: WorkerExit, cause: WorkerExit | None) -> str:
    name = f"w{exit.index}"
    how = f"exit code {exit.code}"
    if exit.code < 0:
        try:
            how = signal.Signals(-exit.code).name
        except ValueError:
            how = f"signal {-exit.code}"
    if exit.by_launcher:
        return f"{name} was ended by the launcher ({how})"
    if exit.code < 0 or exit.code in KILLED_BY_TERM:
        return f"{name} was killed ({how})"
    if cause is not None and exit is not cause:
        verb = "was killed" if cause.code < 0 or cause.code in KILLED_BY_TERM else "ended"
        return f"{name} failed ({how}) after w{cause.index} {verb}: a consequence"
    return f"{name} failed ({how})"
