"""Runs clusters of any size through random schedules: message delays, uneven steps, notices, deaths.

Time is simulated: an event queue holds what happens when. As in `explorer.py`, all decisions are those of
`keras_preempt.agreement.member.Member`, as a fit runs it; here every message also travels in its encoded form.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from functools import lru_cache, partial

from keras_preempt.agreement.alignment import Decision, State, abort_plan, make_plan
from keras_preempt.agreement.grace import reserve
from keras_preempt.agreement.member import CallRequest, Member
from keras_preempt.agreement.messages import At, Call, Failure, Plan, Position, key
from keras_preempt.notices import Notice
from tests.agreement.schedules import Result, Schedule

_decode_call = lru_cache(maxsize=64)(lambda text: Failure.decode(text) or Call.decode(text))
_decode_plan = lru_cache(maxsize=64)(Plan.decode)


class _Cluster:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.random = random.Random(schedule.seed)
        self.now = 0.0
        self.reserve = reserve(0.3, 1.5, 5 * schedule.delay)
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
        for number, (index, when, grace) in enumerate(self.schedule.notices):
            # By the clock that all share here; every other one is a signal that a handler announces.
            source = "signal" if number % 2 else "cloud"
            notice = Notice(source, "a notice", when, when + grace, id=str(number), heard_at=when)
            worker = self.workers[index]
            worker.after(when, partial(worker.notice, notice))
            if number < len(self.schedule.withdrawals):
                worker.after(
                    when + self.schedule.withdrawals[number], partial(worker.member.withdraw, notice)
                )
        for index, when in self.schedule.deaths:
            self.workers[index].after(when, self.workers[index].die)
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
            worker.after(took, worker.enter)
            return
        inside = self._in_step.setdefault(worker.entered, [])
        inside.append(worker)
        if len(inside) == len(self.workers):
            for each in inside:
                each.after(took + self.some_delay(), each.enter)
        elif any(other.ended == "dead" and other not in inside for other in self.workers):
            worker.after(took, worker.fail)

    def someone_died(self, dead: _Worker) -> None:
        for inside in self._in_step.values():
            if len(inside) < len(self.workers) and dead not in inside:
                for worker in inside:
                    worker.after(self.some_delay(), worker.fail)


class _Worker:
    def __init__(self, cluster: _Cluster, index: int) -> None:
        self.cluster = cluster
        self.member = Member(index)
        self.entered = 0
        self.call: Call | None = None
        self.asks_later = False
        self.ended = ""
        self.acted: dict[int, int] = {}

    @property
    def last(self) -> bool:
        return self.entered == self.cluster.schedule.steps + 1

    def key(self, *rest: str | int) -> str:
        return key(0, self.member.round, *rest)

    def now(self) -> tuple[float, float]:
        return self.cluster.now, self.cluster.reserve

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """`do` then, unless this worker has ended by then."""
        self.cluster.after(seconds, lambda: None if self.ended else do())

    def later(self, do: Callable[[], None]) -> None:
        """`do` a moment later, as another atomic step."""
        self.after(self.cluster.some_delay() / 10, do)

    def begin(self) -> None:
        self.put(self.member.start(*self.now()))
        self.listen()
        self.cluster.step(self)

    def die(self) -> None:
        self.ended = "dead"
        self.cluster.someone_died(self)

    def fail(self) -> None:
        self.ended = "raised"
        self.put(self.member.close("a collective failed"))

    def put(self, request: CallRequest | None, told: Callable[[bool], None] | None = None) -> None:
        if request is not None:
            self.cluster.put(key(0, request.round, "call"), request.call.encode(), told)

    # Notices and the countdown.

    def notice(self, notice: Notice) -> None:
        if notice.source == "signal":
            self.member.expect(self.cluster.now)

        def notify() -> None:
            _, request = self.member.notify(notice, *self.now())
            self.put(request)
            self.count_down()

        self.later(notify)

    def count_down(self) -> None:
        """Calls when the countdown says so, by what stands then."""
        due = self.member.due(self.cluster.reserve)
        if due is None or self.ended:
            return
        if due <= self.cluster.now:
            self.put(self.member.count_down(*self.now()))
        else:
            self.cluster.after(due - self.cluster.now, self.count_down)

    # The watcher thread.

    def await_key(self, then: Callable[[str], None], *rest: str | int) -> None:
        """`then` with what stands there, unless this worker has ended by then."""
        self.cluster.get(self.key(*rest), lambda text: None if self.ended else then(text))

    def listen(self) -> None:
        self.await_key(self.see_call, "call")

    def see_call(self, text: str) -> None:
        call = _decode_call(text)
        self.member.hear(call)
        if isinstance(call, Call):
            self.call = call
            self.later(self.publish)
        else:
            self.consider()

    def publish(self) -> None:
        call, number, me = self.call, self.member.round, self.member.index
        assert call is not None
        self.cluster.put(self.key("at", me), self.member.answer(self.entered).encode())
        self.await_key(self.see_plan, "plan")
        if call.member == me:
            self.gather(call)

        def give_up() -> None:
            if self.member.round == number and self.member.state is State.ANSWERED:
                abort = abort_plan(call, f"member {me} waited too long")
                self.cluster.put(self.key("plan"), abort.encode())

        self.after(self.cluster.schedule.patience, give_up)

    def gather(self, call: Call) -> None:
        answers: list[At] = []
        number = self.member.round
        members = range(self.cluster.schedule.members)

        def receive(text: str) -> None:
            answers.append(At.decode(text))
            # What was gathered for a round that was aborted meanwhile must not become the plan of the next.
            waiting = self.member.round == number and self.member.state is State.ANSWERED
            if len(answers) == len(members) and waiting:
                plan = make_plan(call, answers, members)
                self.cluster.put(self.key("plan"), plan.encode())

        for member in members:
            self.await_key(receive, "at", member)

    def see_plan(self, text: str) -> None:
        self.put(self.member.take(_decode_plan(text), *self.now()))
        if self.member.state is State.LISTENING:
            self.listen()
            self.count_down()
        self.consider()

    # The main thread.

    def enter(self) -> None:
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
        self.asks_later = self.member.awaits_call
        if self.asks_later:
            return
        request = self.member.finish()
        if request is None:
            self.member.leave()
            self.ended = "alone"
        else:
            self.put(request, lambda _: None if self.ended else self.hold())

    def hold(self) -> None:
        self.member.hold(Position(0, "train", self.entered))
        self.consider()

    def consider(self) -> None:
        if self.asks_later:
            self.ask()
        if self.member.held is None:
            return
        decision = self.member.let_go(self.entered)
        if decision is Decision.ACT:
            self.after(self.cluster.random.uniform(0.1, 0.3), self.act)
        elif decision is Decision.PASS and self.last:
            self.ask()
        elif decision is Decision.PASS:
            self.cluster.step(self)

    def act(self) -> None:
        plan = self.member.plan
        assert plan is not None
        self.acted[self.member.round] = self.entered
        if plan.goes_on and not self.last:
            self.put(self.member.acted(*self.now()))
            self.count_down()
            self.listen()
            self.cluster.step(self)
        else:
            self.member.leave()
            self.ended = self.member.state.value


def simulate(schedule: Schedule) -> Result:
    """What comes of `schedule`; the same for the same schedule."""
    return _Cluster(schedule).run()
