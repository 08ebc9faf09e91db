"""What a worker of a small cluster is told, and what must hold about it whatever the worker decides."""

from __future__ import annotations

from keras_preempt.agreement.alignment import State
from keras_preempt.agreement.member import CallRequest, Member
from keras_preempt.agreement.messages import Failure, Kind
from keras_preempt.notices import Notice
from tests.agreement.alignment_cluster import ENDS_AT, RESERVE, TIMES, Round, Violation, Worker, thawed


def notice_of(number: int, what: str) -> Notice:
    deadline = ENDS_AT if what == "r" else None
    return Notice("test", what, 0.0, deadline, id=str(number), hint=what == "h", heard_at=0.0)


def times(script: str, worker: Worker) -> list[int]:
    """What the clock of the worker may say when it looks at it next."""
    used_up = worker.time == 0 and "r" in outstanding(script, worker)
    late = worker.time < 2 and thawed(worker.member).expected_until is not None
    return [worker.time, worker.time + 1] if used_up or late else [worker.time]


def outstanding(script: str, worker: Worker) -> list[str]:
    """The notices that it has heard and that were not withdrawn."""
    found: list[str] = []
    for what in script[: worker.heard]:
        if what == "w":
            found.pop()
        elif what in "nr":
            found.append(what)
    return found


def interrupted(script: str, worker: Worker) -> bool:
    return "i" in script[: worker.heard]


def has_time(script: str, worker: Worker) -> bool:
    return worker.time == 0 and "n" not in outstanding(script, worker)


def check_call(i: int, script: str, worker: Worker, request: CallRequest | None) -> None:
    """What a worker may say about the notices that it has."""
    if request is None or isinstance(request.call, Failure):
        return
    if request.call.kind is Kind.INTERRUPTED and not interrupted(script, worker):
        raise Violation(f"worker {i} says that it is interrupted, and is not")
    if request.call.kind in (Kind.PREEMPTED, Kind.DEADLINE):
        if not outstanding(script, worker):
            raise Violation(f"worker {i} calls, although no notice stands")
        if request.call.goes_on and not has_time(script, worker):
            raise Violation(f"worker {i} wants to train on without time")
        if not request.call.goes_on and has_time(script, worker):
            raise Violation(f"worker {i} wants to leave although there is time")


def check_notices(i: int, script: str, worker: Worker, member: Member, current: Round, last: int) -> None:
    """What holds in every state: a notice is being served or counted down for, an interrupt is served at once."""
    busy = member.state is not State.LISTENING or current.call is not None or member.stopped_asking
    saying = (worker.listener, worker.countdown, worker.thread, worker.watcher) != (None,) * 4
    if interrupted(script, worker) and not (busy or saying or worker.entered == last):
        raise Violation(f"worker {i} does nothing about an interrupt")
    if not outstanding(script, worker):
        if member.trains_on or member.standing:
            raise Violation(f"worker {i} counts down, although no notice stands")
        return
    if not member.standing:
        raise Violation(f"worker {i} has forgotten a notice that stands")
    if busy or saying or worker.entered == last:
        return
    due = member.due(RESERVE)
    if due is None or (not has_time(script, worker) and TIMES[worker.time] < due):
        raise Violation(f"worker {i} does nothing about a notice that stands")
