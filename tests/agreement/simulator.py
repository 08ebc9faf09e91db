"""Runs clusters of any size through random schedules: message delays, uneven steps, notices, deaths.

Time is simulated: an event queue holds what happens when. As in `explorer.py`, all decisions are
those of the real functions of `keras_preempt.agreement.alignment`; here every message also travels in its encoded form.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from functools import lru_cache

from keras_preempt.agreement.alignment import (
    At,
    Call,
    Decision,
    Event,
    Kind,
    Member,
    Plan,
    Position,
    State,
    abort_plan,
    advance,
    answer,
    held_decision,
    key,
    make_plan,
    outcome,
)
from keras_preempt.training.grace import has_room, last_call_at, reserve
from tests.agreement.schedules import Result, Schedule

_decode_call = lru_cache(maxsize=64)(Call.decode)
_decode_plan = lru_cache(maxsize=64)(Plan.decode)


class _Cluster:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.random = random.Random(schedule.seed)
        self.now = 0.0
        self.reserve = reserve(0.3, 1.5, 5 * schedule.delay, margin=0.5)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._values: dict[str, str] = {}
        self._waiting: dict[str, list[Callable[[str], None]]] = {}
        self._in_step: dict[int, list[_Worker]] = {}
        self.workers = [_Worker(self, i) for i in range(schedule.members)]
        self.result = Result([], [])

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + seconds, next(self._order), do))

    def some_delay(self) -> float:
        return self.random.expovariate(1.0) * self.schedule.delay

    def run(self) -> Result:
        for worker in self.workers:
            self.after(self.some_delay(), worker.begin)
        for index, when, grace in self.schedule.notices:
            worker = self.workers[index]
            self.after(when, lambda worker=worker, until=when + grace: worker.notice(until))  # type: ignore[misc]
        for index, when in self.schedule.deaths:
            self.after(when, self.workers[index].die)
        result = self.result
        while self._queue:
            self.now, _, do = heapq.heappop(self._queue)
            do()
            result.events += 1
        result.ended = [worker.ended for worker in self.workers]
        result.acted = [worker.acted for worker in self.workers]
        return result

    # The coordination service: insert-once keys, and waits on them.

    def put(self, name: str, value: str, told: Callable[[bool], None] | None = None) -> None:
        def arrive() -> None:
            first = name not in self._values
            if first:
                self._values[name] = value
                self._note(name, value)
                for waiting in self._waiting.pop(name, ()):
                    self.after(self.some_delay(), lambda waiting=waiting: waiting(value))  # type: ignore[misc]
            if told is not None:
                self.after(self.some_delay(), lambda: told(first))

        self.after(self.some_delay(), arrive)

    def get(self, name: str, then: Callable[[str], None]) -> None:
        value = self._values.get(name)
        if value is None:
            self._waiting.setdefault(name, []).append(then)
        else:
            self.after(self.some_delay(), lambda: then(value))

    def _note(self, name: str, value: str) -> None:
        _, _, number, what, *_ = name.split("/")
        if what == "call":
            self.result.entered_at_call[int(number)] = max(worker.entered for worker in self.workers)
        elif what == "plan":
            self.result.plans[int(number)] = _decode_plan(value)

    # Steps.

    def step(self, worker: _Worker) -> None:
        took = self.random.uniform(0.5, 1.5)
        if not self.schedule.lockstep or worker.entered == 0:
            self.after(took, worker.enter)
            return
        inside = self._in_step.setdefault(worker.entered, [])
        inside.append(worker)
        if len(inside) == len(self.workers):
            for each in inside:
                self.after(took + self.some_delay(), each.enter)
        elif any(other.ended == "dead" and other not in inside for other in self.workers):
            self.after(took, lambda: worker.end("raised"))

    def someone_died(self, dead: _Worker) -> None:
        for inside in self._in_step.values():
            if len(inside) < len(self.workers) and dead not in inside:
                for worker in inside:
                    self.after(self.some_delay(), lambda worker=worker: worker.end("raised"))  # type: ignore[misc]


class _Worker:
    def __init__(self, cluster: _Cluster, index: int) -> None:
        self.cluster = cluster
        self.member = Member(index)
        self.entered = 0
        self.held = False
        self.asked: int | None = None
        self.noticed = False
        self.due: tuple[Kind, float] | None = None
        self.ended = ""
        self.acted: dict[int, int] = {}

    @property
    def last(self) -> bool:
        return self.entered == self.cluster.schedule.steps + 1

    def key(self, *rest: str | int) -> str:
        return key(0, self.member.round, *rest)

    def later(self, do: Callable[[], None]) -> None:
        """`do` a moment later, as another atomic step, unless this worker has ended by then."""
        self.cluster.after(self.cluster.some_delay() / 10, lambda: None if self.ended else do())

    def begin(self) -> None:
        self.listen()
        self.cluster.step(self)

    def die(self) -> None:
        if not self.ended:
            self.ended = "dead"
            self.cluster.someone_died(self)

    def end(self, how: str) -> None:
        if self.ended:
            return
        self.ended = how
        if how == "raised":
            self.cluster.put(
                self.key("call"), Call(self.member.index, Kind.FAILED, "a collective failed").encode()
            )

    # Notices.

    def notice(self, deadline: float) -> None:
        self.noticed = True
        self.due = (Kind.PREEMPTED, deadline)
        self.call()

    def call(self) -> None:
        if self.ended or self.due is None or self.member.state is not State.LISTENING:
            return
        kind, deadline = self.due
        room = kind is Kind.PREEMPTED and has_room(deadline, self.cluster.now, self.cluster.reserve, 0.5)
        call = Call(self.member.index, kind, "notice", deadline, goes_on=room)
        self.cluster.put(self.key("call"), call.encode())

    def served(self, plan: Plan) -> None:
        """A round has saved and training goes on: what this worker's notice still asks for."""
        if self.due is None or plan.kind is not Kind.PREEMPTED:
            return
        deadline = self.due[1]
        if has_room(deadline, self.cluster.now, self.cluster.reserve, 0.5):
            self.due = None
            when = last_call_at(deadline, self.cluster.reserve)
            assert when is not None
            self.cluster.after(when - self.cluster.now, lambda: self.last_call(deadline))

    def last_call(self, deadline: float) -> None:
        self.due = (Kind.DEADLINE, deadline)
        self.call()

    # The watcher thread.

    def listen(self) -> None:
        self.cluster.get(self.key("call"), self.see_call)
        self.call()

    def see_call(self, text: str) -> None:
        if self.ended:
            return
        self.member = advance(self.member, Event.CALL, call=_decode_call(text))
        if self.member.attention:
            self.later(self.publish)
        else:
            self.consider()

    def publish(self) -> None:
        call, number, me = self.member.call, self.member.round, self.member.index
        assert call is not None
        at = answer(me, self.entered, self.held, Position(0, "train", self.entered), self.noticed)
        self.cluster.put(self.key("at", me), at.encode())
        self.cluster.get(self.key("plan"), self.see_plan)
        if call.member == me:
            self.gather(call)

        def give_up() -> None:
            if not self.ended and self.member.round == number and self.member.state is State.ANSWERED:
                self.cluster.put(self.key("plan"), abort_plan(call, f"member {me} waited too long").encode())

        self.cluster.after(self.cluster.schedule.patience, give_up)

    def gather(self, call: Call) -> None:
        answers: list[At] = []
        number = self.member.round
        members = range(self.cluster.schedule.members)

        def receive(text: str) -> None:
            answers.append(At.decode(text))
            # What was gathered for a round that was aborted meanwhile must not become the plan of the next.
            waiting = self.member.round == number and self.member.state is State.ANSWERED
            if len(answers) == len(members) and waiting and not self.ended:
                plan = make_plan(call, answers, members)
                self.cluster.put(self.key("plan"), plan.encode())

        for member in members:
            self.cluster.get(self.key("at", member), receive)

    def see_plan(self, text: str) -> None:
        if self.ended:
            return
        self.member = advance(self.member, Event.PLAN, plan=_decode_plan(text))
        if self.member.state is State.LISTENING:
            self.listen()
        self.consider()

    # The main thread.

    def enter(self) -> None:
        if self.ended:
            return
        self.entered += 1
        self.later(self.look)

    def look(self) -> None:
        if self.last:
            self.ask()
        elif self.member.attention:
            self.later(self.hold)
        else:
            self.cluster.step(self)

    def ask(self) -> None:
        number = self.member.round
        call = Call(self.member.index, Kind.FINISHED)

        def told(_: bool) -> None:
            if self.ended:
                return
            if self.member.round != number and self.member.state is State.LISTENING:
                self.ask()  # that round was aborted before this thread had asked
                return
            self.asked = number
            self.hold()

        self.cluster.put(self.key("call"), call.encode(), told)

    def hold(self) -> None:
        self.held = True
        self.consider()

    def consider(self) -> None:
        if not self.held:
            return
        decision = held_decision(self.member, self.entered, last=self.last, asked=self.asked)
        if decision is Decision.HOLD:
            return
        self.held = False
        if decision is Decision.ACT:
            self.member = advance(self.member, Event.REACHED)
            self.cluster.after(
                self.cluster.random.uniform(0.1, 0.3), lambda: None if self.ended else self.act()
            )
        elif self.last:
            self.end("alone")
        else:
            self.cluster.step(self)

    def act(self) -> None:
        plan = self.member.plan
        assert plan is not None
        self.acted[self.member.round] = self.entered
        event = outcome(self.entered, plan, self.last)
        self.member = advance(self.member, event)
        if event is Event.ACTED:
            self.served(plan)
            self.listen()
            self.cluster.step(self)
        else:
            self.ended = "left" if event is Event.LEAVE else "finished"


def simulate(schedule: Schedule) -> Result:
    """What comes of `schedule`; the same for the same schedule."""
    return _Cluster(schedule).run()
