"""One rule of the protocol each, broken in the code that a fit runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from keras_preempt.agreement import alignment, member
from keras_preempt.agreement.alignment import State
from keras_preempt.agreement.grace import Standing
from keras_preempt.agreement.member import CallRequest, Member, Withdrawn
from keras_preempt.agreement.messages import At, Call, Plan
from tests.agreement import model
from tests.agreement.alignment_cluster import Cluster

Mutation = Callable[[pytest.MonkeyPatch], None]


def attention_ends_with_the_answers(patch: pytest.MonkeyPatch) -> None:
    """Attention is not kept on until the target is reached."""
    patch.setattr(member, "_ATTENTIVE", frozenset({State.ANSWERED, State.ACTING}))


def answers_where_it_was(patch: pytest.MonkeyPatch) -> None:
    """A worker that trains answers with the boundary that it has entered, and not with the next one."""
    patch.setattr(member, "answer", lambda index, entered, *rest: At(index, max(entered, 1), *rest))


def plans_the_lowest(patch: pytest.MonkeyPatch) -> None:
    """The target is not the furthest boundary."""
    whole = alignment.make_plan

    def make_plan(call: Call, answers: list[At], members: tuple[int, ...]) -> Plan:
        return replace(whole(call, answers, members), target=min(at.boundary for at in answers))

    patch.setattr(model, "make_plan", make_plan)


def does_not_wait_for_its_last_call(patch: pytest.MonkeyPatch) -> None:
    """At the last boundary a worker does not wait for the answer to its own call."""
    patch.setattr(Member, "finish", lambda self: setattr(self, "last", True))


def acts_at_the_end_only_at_the_target(patch: pytest.MonkeyPatch) -> None:
    """At the last boundary a plan whose target lies beyond it is not carried out."""
    patch.setattr(member, "decide", lambda entered, plan, last: alignment.decide(entered, plan, False))


def leaves_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """What was called decides what follows, also at the last boundary."""
    patch.setattr(member, "outcome", lambda plan, last: alignment.outcome(plan, False))


def returns_no_request(patch: pytest.MonkeyPatch, name: str) -> None:
    whole = getattr(Member, name)
    patch.setattr(Member, name, lambda *given: (whole(*given), None)[1])


def asks_no_more_after_an_abort(patch: pytest.MonkeyPatch) -> None:
    """A notice is forgotten if the round that was called for it is aborted."""
    returns_no_request(patch, "take")


def leaves_one_that_calls(patch: pytest.MonkeyPatch) -> None:
    """A worker that has asked often enough at its end goes, although it has answered another one's call."""
    patch.setattr(member, "ROUNDS_PER_REASON", 1)
    whole = Member.finish

    def finish(self: Member) -> CallRequest | None:
        if self.asks == member.ROUNDS_PER_REASON:
            self.last = True
            return None
        return whole(self)

    patch.setattr(Member, "finish", finish)


def gives_up_at_once(patch: pytest.MonkeyPatch) -> None:
    """A worker gives up at its end although no round was aborted."""
    whole = Member.finish

    def finish(self: Member) -> CallRequest | None:
        self.asks = member.ROUNDS_PER_REASON
        return whole(self)

    patch.setattr(Member, "finish", finish)


def takes_no_failure(patch: pytest.MonkeyPatch) -> None:
    """That another worker takes part no more is not heeded."""
    patch.setattr(Member, "lose", lambda self: None)


def counts_down_to_nothing(patch: pytest.MonkeyPatch) -> None:
    """The countdown never calls."""
    patch.setattr(Member, "due", lambda self, reserve: None)


def counts_down_to_the_first(patch: pytest.MonkeyPatch) -> None:
    """A second notice does not move the last call."""
    patch.setattr(Standing, "first", property(lambda self: self.notices[0]))


def keeps_what_is_withdrawn(patch: pytest.MonkeyPatch) -> None:
    """A withdrawn notice still stands."""
    patch.setattr(Member, "withdraw", lambda self, notice: Withdrawn.FREE)


def withdraws_all(patch: pytest.MonkeyPatch) -> None:
    """The withdrawal of one notice takes the others with it."""
    patch.setattr(Standing, "withdraw", lambda self, notice: Standing(self.grace))


def calls_once(patch: pytest.MonkeyPatch) -> None:
    """A notice that comes during a save that goes on is not called for after it."""
    returns_no_request(patch, "acted")


def counts_down_before_an_interrupt(patch: pytest.MonkeyPatch) -> None:
    """What is trained on for a notice goes before what the user wants now."""
    patch.setattr(Member, "_counts_down", property(lambda self: self.trains_on))


def trains_on_without_time(patch: pytest.MonkeyPatch) -> None:
    """Whether there is time does not matter."""
    patch.setattr(member, "has_room", lambda save_deadline, now, reserve: True)


def does_not_hold_for_a_signal(patch: pytest.MonkeyPatch) -> None:
    """A step begins although the signal handler has announced a notice."""
    patch.setattr(Member, "awaits_call", False)


def counts_on_the_boundary_before_a_signal(patch: pytest.MonkeyPatch) -> None:
    """A worker that was told by a signal handler answers with a boundary that it has passed already."""
    whole = Member.expect
    patch.setattr(
        Member, "expect", lambda self, now, entered=sys.maxsize: whole(self, now, max(0, entered - 1))
    )


def told(script: str) -> Cluster:
    return Cluster(2, 3, False, scripts=(script,))


MUTATIONS: list[tuple[Mutation, Cluster, str]] = [
    (attention_ends_with_the_answers, Cluster(2, 3, False), "passes boundary"),
    (answers_where_it_was, Cluster(2, 3, False), "beyond it|passes boundary"),
    (plans_the_lowest, Cluster(2, 3, False), "beyond it|passes boundary"),
    (does_not_wait_for_its_last_call, Cluster(2, 3, False), "stuck|not all act|some act"),
    (acts_at_the_end_only_at_the_target, Cluster(2, 2, False), "stuck|not all act"),
    (leaves_at_the_end, Cluster(2, 3, False), "instead of finishing"),
    (leaves_one_that_calls, Cluster(2, 1, False, patience="none", reduced=True), "some act"),
    (gives_up_at_once, Cluster(2, 2, False, patience="none"), "gives up after 0 rounds"),
    (takes_no_failure, Cluster(2, 3, False, "raise"), "stuck"),
    (asks_no_more_after_an_abort, Cluster(2, 3, False, patience="none"), "does nothing about a notice"),
    (counts_down_to_nothing, told("r"), "does nothing about a notice"),
    (counts_down_to_the_first, told("rn"), "does nothing about a notice|without time"),
    (keeps_what_is_withdrawn, told("rw"), "no notice stands"),
    (withdraws_all, told("rnw"), "has forgotten a notice"),
    (calls_once, told("pr"), "does nothing about a notice"),
    (counts_down_before_an_interrupt, told("ri"), "does nothing about an interrupt"),
    (calls_once, told("pi"), "does nothing about an interrupt"),
    (trains_on_without_time, Cluster(2, 3, False), "train on without time"),
    (does_not_hold_for_a_signal, told("sn"), "although a notice was announced"),
    (counts_on_the_boundary_before_a_signal, told("sn"), "beyond it|passes boundary"),
]
"""Each with a cluster that shows it, and with what the explorer says about it."""
