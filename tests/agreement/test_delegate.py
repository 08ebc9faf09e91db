"""Real delegates with their watcher threads, over keys in memory: each rule of theirs, and what breaks without it."""

from __future__ import annotations

import inspect
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from keras_preempt.agreement.delegate import Delegate
from keras_preempt.agreement.member import ROUNDS_PER_REASON
from keras_preempt.agreement.messages import Call, Failure, Kind, Plan, Position, ProtocolError, key
from keras_preempt.notices import Notice
from tests.agreement.memory_coordinator import MemoryService

LAST = 9


class Main:
    """What a main thread shares with its watcher; `run_on` is what it does.

    Attributes:
        hurries: Whether it passes further boundaries, unless it has to look closer at them, just after the watcher has
            read how far it is.
    """

    attention = False
    every_boundary = False

    def __init__(self, entered: int, *, hurries: bool = False) -> None:
        self.at = entered
        self.hurries = hurries

    @property
    def entered(self) -> int:
        read = self.at
        if self.hurries and threading.current_thread().name == "keras_preempt-watcher":
            while not self.attention and self.at < read + 2:
                self.at += 1
        return read

    @entered.setter
    def entered(self, value: int) -> None:
        self.at = value

    def reserve(self) -> float:
        return 10.0

    def aligned(self, seconds: float) -> None:
        pass


class Job:
    """The members of one fit, or those of them that live, each of which has entered a boundary."""

    def __init__(self, *entered: int, members: int | None = None, hurries: bool = False) -> None:
        self.service = MemoryService(members or len(entered))
        self.mains = [Main(at, hurries=hurries) for at in entered]
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.delegates = [
            Delegate(main, coordinator, 1, None, self._tell, time.monotonic)
            for main, coordinator in zip(self.mains, self.service.coordinators(), strict=False)
        ]
        for delegate in self.delegates:
            delegate.start()

    def _tell(self, kind: str, **fields: Any) -> None:
        self.told.append((kind, fields))

    def end(self) -> None:
        self.service.lose()
        for delegate in self.delegates:
            delegate.close("the test is over")

    def run_on(self, member: int) -> int | None:
        """Trains on; returns the boundary at which the member acts, None if it comes to the last one before."""
        main, delegate = self.mains[member], self.delegates[member]
        while main.entered < LAST - 1:
            main.entered += 1
            if main.attention and delegate.hold(Position(0, "train", main.entered)) is not None:
                return main.entered
        return None

    def notify(self, member: int) -> None:
        self.delegates[member].notify(Notice("test", "a notice", 0.0, heard_at=0.0))

    def plan(self, number: int = 0) -> Plan:
        (text,) = self.service.await_key(f"/{number}/plan")
        return Plan.decode(text)


@pytest.fixture(autouse=True)
def _short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_preempt.agreement.delegate.ALIGNMENT_TIMEOUT", 1.0)
    monkeypatch.setattr("keras_preempt.agreement.delegate.PLAN_MARGIN", 0.0)


@pytest.fixture
def jobs() -> Iterator[Callable[..., Job]]:
    begun: list[Job] = []

    def begin(*entered: int, **options: Any) -> Job:
        begun.append(Job(*entered, **options))
        return begun[-1]

    yield begin
    for job in begun:
        job.end()


# -- The order of what they do -----------------------------------------------------------------------------

Check = Callable[[Callable[..., Job]], None]


def all_act_at_the_boundary_after_the_furthest(jobs: Callable[..., Job]) -> None:
    job = jobs(3, 5)
    job.notify(0)
    plan = job.plan()
    assert (plan.target, plan.abort) == (6, None)
    assert [job.run_on(0), job.run_on(1)] == [6, 6]


def the_main_thread_has_to_look_closer_before_it_is_asked_how_far_it_is(jobs: Callable[..., Job]) -> None:
    job = jobs(3, 1, hurries=True)
    job.notify(1)
    assert job.plan().target == 4
    assert [job.run_on(0), job.run_on(1)] == [4, 4]


def whoever_has_called_begins_no_further_step(jobs: Callable[..., Job]) -> None:
    job = jobs(3)
    late = job.service.hold_back("wait", lambda member, key: key.endswith("/0/call"))
    job.notify(0)
    with ThreadPoolExecutor(1) as pool:
        acted = pool.submit(job.run_on, 0)
        while job.delegates[0].member.held is None and not acted.done():
            time.sleep(0.001)  # Nobody is told that it holds; or else it comes to its end.
        late()
        assert acted.result(10) == 4


def a_round_without_an_answer_of_everyone_is_aborted(jobs: Callable[..., Job]) -> None:
    job = jobs(3, 5)
    release = job.service.hold_back("put", lambda member, key: key.endswith("/0/at/1"))
    job.notify(0)
    assert job.plan().abort == "worker 1 did not answer within 1 s"
    release()
    assert job.plan(1).target == 6  # The notice is called for again.
    assert [job.run_on(0), job.run_on(1)] == [6, 6]


def whoever_waits_no_longer_goes_by_the_plan_that_came_first(jobs: Callable[..., Job]) -> None:
    job = jobs(3, 5)
    gather = job.service.hold_back("wait", lambda member, key: member == 0 and key.endswith("/0/at/1"))
    abort = job.service.hold_back("put", lambda member, key: member == 1 and key.endswith("/0/plan"))
    job.notify(0)
    job.service.await_call(1, "put", "/0/plan")
    gather()
    assert job.plan().target == 6
    abort()
    assert [job.run_on(0), job.run_on(1)] == [6, 6]


CHECKS = [
    all_act_at_the_boundary_after_the_furthest,
    the_main_thread_has_to_look_closer_before_it_is_asked_how_far_it_is,
    whoever_has_called_begins_no_further_step,
    a_round_without_an_answer_of_everyone_is_aborted,
    whoever_waits_no_longer_goes_by_the_plan_that_came_first,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_delegates_keep_the_order(check: Check, jobs: Callable[..., Job]) -> None:
    check(jobs)


Broken = tuple[type, str, str, str]
"""A method, what is in its source, and what is put there instead."""

READS_BEFORE_IT_SETS_ATTENTION: Broken = (
    Delegate,
    "_one_round",
    """\
            self.update()  # Sets attention, BEFORE `entered` is read: see alignment.
            if isinstance(call, Failure):
                own = call.member == self.member.index
                self._say_lost(str(call) if own else f"worker {call.member} has left its fit: {call}")
                return False
            answer = self.member.answer(self._main.entered)
""",
    """\
            answer = self.member.answer(self._main.entered)
            self.update()
""",
)
WAITS_FOR_THE_PLAN_BEFORE_IT_MAKES_ONE: Broken = (
    Delegate,
    "_one_round",
    """\
        if call.member == self.member.index:
            self._publish_plan(number, call)
        plan = self._wait_for_plan(number, call)
""",
    """\
        plan = self._wait_for_plan(number, call)
        if call.member == self.member.index:
            self._publish_plan(number, call)
""",
)
PLANS_WITH_THE_ANSWERS_THAT_THERE_ARE: Broken = (
    Delegate,
    "_publish_plan",
    """plan = abort_plan(call, f"worker {len(answers)} did not answer within {ALIGNMENT_TIMEOUT:.0f} s")""",
    "plan = make_plan(call, answers, [at.member for at in answers])",
)
GOES_BY_ITS_OWN_ABORT: Broken = (
    Delegate,
    "_wait_for_plan",
    """text = self._coordinator.wait_for(self._key(number, "plan"), ALIGNMENT_TIMEOUT)""",
    "text = plan.encode()",
)


def break_it(patch: pytest.MonkeyPatch, broken: Broken) -> None:
    """Replaces a part of a method's source, which must be there once."""
    owner, name, is_there, instead = broken
    source = inspect.getsource(getattr(owner, name))
    assert source.count(is_there) == 1, f"{name} has changed: name the part of it anew"
    code = f"from __future__ import annotations\n{textwrap.dedent(source.replace(is_there, instead))}"
    made: dict[str, Any] = {}
    exec(code, vars(sys.modules[owner.__module__]), made)
    patch.setattr(owner, name, made[name])


@pytest.mark.parametrize(
    ("broken", "check", "shows"),
    [
        (READS_BEFORE_IT_SETS_ATTENTION, CHECKS[1], "act at boundary 4.*beyond it, at boundary 6"),
        (WAITS_FOR_THE_PLAN_BEFORE_IT_MAKES_ONE, CHECKS[0], r"made no plan'\) == \(6, None\)"),
        (PLANS_WITH_THE_ANSWERS_THAT_THERE_ARE, CHECKS[3], "assert None == 'worker 1 did not answer"),
        (GOES_BY_ITS_OWN_ABORT, CHECKS[4], r"assert \[6, None\] == \[6, 6\]"),
    ],
    ids=["reads before it sets", "waits before it plans", "plans with some answers", "goes by its own abort"],
)
def test_another_order_is_found(
    broken: Broken, check: Check, shows: str, jobs: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch, broken)
    with pytest.raises((AssertionError, ProtocolError), match=shows):
        check(jobs)


# -- The end without agreement --------------------------------------------------------------------------------


@pytest.fixture
def _patient_with_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_preempt.agreement.delegate.ALIGNMENT_TIMEOUT", 0.4)
    monkeypatch.setattr("keras_preempt.agreement.delegate.PLAN_MARGIN", 10.0)


def finish(job: Job) -> Plan | None:
    """Worker 0 comes to the last boundary."""
    job.mains[0].entered = LAST
    return job.delegates[0].finish(Position(1, "end", 0))


@pytest.mark.usefixtures("_patient_with_plans")
def test_one_whose_rounds_are_all_aborted_at_its_end_gives_up_and_tells_the_others(
    jobs: Callable[..., Job], caplog: pytest.LogCaptureFixture
) -> None:
    job = jobs(LAST - 1, members=2)  # The other one is frozen.
    assert finish(job) is None
    why = "no agreement at the end of training, after 3 rounds"
    (text,) = job.service.await_key(f"/{ROUNDS_PER_REASON}/call")
    assert Failure.decode(text) == Failure(0, "", 0, why)
    assert f"No checkpoint can be agreed on any more in this fit: {why}. " in caplog.text
    assert job.told[-1] == ("error", {"reason": why})


@pytest.mark.usefixtures("_patient_with_plans")
def test_one_that_gives_up_at_its_end_holds_if_another_call_came_first(jobs: Callable[..., Job]) -> None:
    """The other one was frozen for three rounds, and calls for the end itself, just before that."""
    job = jobs(LAST - 1, members=2)
    _, other = job.service.coordinators()
    call = Call(1, Kind.FINISHED, "training finished")
    other.put_if_absent(key(1, ROUNDS_PER_REASON, "call"), call.encode())
    late = job.service.hold_back("wait", lambda member, key: key.endswith(f"/{ROUNDS_PER_REASON}/call"))
    plan = Plan(LAST, Kind.FINISHED, (0, 1), ())
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(finish, job)
        job.service.await_call(0, "put", f"/{ROUNDS_PER_REASON}/call")  # It has given up.
        late()
        job.service.await_key(f"/{ROUNDS_PER_REASON}/at/0")
        other.put_if_absent(key(1, ROUNDS_PER_REASON, "plan"), plan.encode())
        assert found.result(10) == plan


def test_what_a_signal_handler_sets_is_not_cleared_by_what_was_decided_before(
    jobs: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no lock, and runs between any two instructions of another thread."""
    job = jobs(LAST - 1, members=2)
    member, stored = job.delegates[0].member, [False]

    def store(main: Main, value: bool) -> None:
        if member.expect(time.monotonic()):
            stored.append(True)
        monkeypatch.setattr(member, "expect", lambda now: False)  # It was one signal.
        stored.append(value)

    monkeypatch.setattr(Main, "attention", property(lambda main: stored[-1], store))
    with job.delegates[0].changed:
        job.delegates[0].update()
    assert stored == [False, True, False, True]
