"""The messages of rounds, as they are put into and fetched from the keys of the coordination service.

What they mean is decided in `alignment` and `member`; who waits for which, in `delegate`. Every wait has its bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from keras_preempt.agreement.alignment import abort_plan, make_plan
from keras_preempt.agreement.coordinator import CoordinationTimeout, Coordinator
from keras_preempt.agreement.member import Request
from keras_preempt.agreement.messages import At, Call, Failure, Plan

ALIGNMENT_TIMEOUT = 30.0
"""Seconds that one message of a round may take. Answers come from watcher threads, not from training, so
that they take milliseconds; only a dead or stopped process takes longer."""

PLAN_MARGIN = 5.0
"""Seconds by which the others wait longer for a plan than the caller waits for their answers."""

LEADER_WAIT = 5.0
"""Seconds that the coordination leader waits for the others to leave first: without it their calls fail."""


class Rounds:
    """The rounds of one fit. Every method may raise `CoordinationLost`.

    Args:
        coordinator: How the workers talk to each other.
        fit: The number of this fit in this process; the same on every worker.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self, coordinator: Coordinator, fit: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._coordinator = coordinator
        self._fit = fit
        self._clock = clock

    def put(self, request: Request) -> None:
        """Puts a call, unless one stands."""
        self._coordinator.put_if_absent(self._key(request.round, "call"), request.call.encode())

    def wait_for_call(self, number: int) -> Call | Failure:
        """Waits for the call, for as long as it takes; a failure instead, if a member takes part no more."""
        text = self._coordinator.wait_for(self._key(number, "call"), None)
        return Failure.decode(text) or Call.decode(text)

    def answer(self, number: int, answer: At) -> None:
        """Puts this member's answer."""
        self._coordinator.put_if_absent(self._key(number, "at", str(answer.member)), answer.encode())

    def publish_plan(self, number: int, call: Call) -> None:
        """Gathers every answer and puts the plan; an aborted one if a member does not answer."""
        members = range(self._coordinator.members)
        limit = self._clock() + ALIGNMENT_TIMEOUT
        answers: list[At] = []
        try:
            for member in members:
                left = max(0.001, limit - self._clock())
                answers.append(
                    At.decode(self._coordinator.wait_for(self._key(number, "at", str(member)), left))
                )
            plan = make_plan(call, answers, members)
        except CoordinationTimeout:
            plan = abort_plan(call, f"worker {len(answers)} did not answer within {ALIGNMENT_TIMEOUT:.0f} s")
        self._coordinator.put_if_absent(self._key(number, "plan"), plan.encode())

    def wait_for_plan(self, number: int, call: Call) -> Plan:
        """Waits for the plan; aborts the round if none comes.

        Raises:
            CoordinationTimeout: Not even that gets through.
        """
        try:
            text = self._coordinator.wait_for(self._key(number, "plan"), ALIGNMENT_TIMEOUT + PLAN_MARGIN)
        except CoordinationTimeout:
            # Plan or abort: whatever is inserted first holds for everyone.
            plan = abort_plan(call, f"worker {call.member} called, and then made no plan")
            self._coordinator.put_if_absent(self._key(number, "plan"), plan.encode())
            text = self._coordinator.wait_for(self._key(number, "plan"), ALIGNMENT_TIMEOUT)
        return Plan.decode(text)

    def forget(self, number: int) -> None:
        """Deletes the messages of a round that everyone has left."""
        self._coordinator.delete(self._key(number))

    def leave_last(self, number: int, left: float | None = None) -> None:
        """Says that this member leaves; the coordination leader waits for the others first.

        Args:
            number: The round.
            left: Seconds until this machine goes; None if nobody has said.

        Raises:
            CoordinationTimeout: They did not say so in time.
        """
        me, everyone = self._coordinator.member, range(self._coordinator.members)
        if me != 0:
            self._coordinator.put_if_absent(self._key(number, "left", str(me)), "1")
            return
        limit = self._clock() + (LEADER_WAIT if left is None else min(LEADER_WAIT, left))
        for other in everyone:
            if other != me:
                wait = max(0.001, limit - self._clock())
                self._coordinator.wait_for(self._key(number, "left", str(other)), wait)

    def _key(self, number: int, *rest: str) -> str:
        return key(self._fit, number, *rest)


def key(fit: int, round: int, *rest: str | int) -> str:
    """The key of a round's message, for example `keras_preempt/0/2/at/1`.

    Args:
        fit: How many fits this process has begun; the same on every worker.
        round: Number of the round.
        rest: Further parts: "call", "plan", or "at" and the member's index.
    """
    return "/".join(("keras_preempt", str(fit), str(round), *map(str, rest)))
