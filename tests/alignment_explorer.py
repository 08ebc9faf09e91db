"""Runs every interleaving of a small cluster through the functions of `keras_preempt.alignment`.

A worker is modelled by what its threads do to shared memory and to the insert-once keys, one atomic step at
a time; what they decide is asked of the real functions. A cluster's state is a tuple of small integers, one
per worker plus one for the keys, each naming an interned value. What one worker can do depends only on its
own value, the keys and four facts about the others, so it is worked out once per such combination.
No step can be undone (a counter goes up, a key appears, a thread ends), so there are no cycles: if no state
without a next step leaves a worker waiting, every execution ends.

`Cluster.reduced` leaves out orders that cannot differ (a partial-order reduction). A step is then run at
once, alone, where it commutes with every step that could come before it: nothing reads what it writes, and
it takes no other step away. `_commutes` says which; a test compares both explorations where both are cheap.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple

from keras_preempt.alignment import (
    At,
    Call,
    Decision,
    Event,
    Kind,
    Member,
    Plan,
    Position,
    ProtocolError,
    State,
    abort_plan,
    advance,
    answer,
    held_decision,
    make_plan,
    outcome,
)


class Violation(AssertionError):
    """A guarantee does not hold; the message has the shortest path that shows it."""


class Main(IntEnum):
    """Where a worker's main thread is. From LEFT on it has ended."""

    RUNNING = 0  # in the step after boundary `entered`
    ENTERED = 1  # has incremented `entered`, has not looked at `attention`
    MARKING = 2  # is about to set `held`
    HELD = 3
    ACTING = 4
    LEFT = 5
    FINISHED = 6
    ALONE = 7  # training ended after an aborted round or without coordination
    RAISED = 8  # training's own error
    DEAD = 9


class Watch(IntEnum):
    """Where a worker's watcher thread is."""

    WAITING = 0  # for a call, or for the main thread to end the round
    SEEN = 1  # has set `attention`
    READ = 2  # has read how far the main thread is
    PUBLISHED = 3  # waits for the plan; the caller also for answers
    TORN = 4  # mutant: has read `entered`, not yet `held`
    EARLY = 5  # mutant: has read both, has not set `attention`


class Worker(NamedTuple):
    main: Main
    entered: int
    watch: Watch
    at: At | None
    member: Member | None
    noticed: bool
    calls: int  # calls that it may still make for its notice
    asked: int | None
    released: int  # mutant: the round in which it was released


class Round(NamedTuple):
    number: int
    call: Call | None
    answers: tuple[At | None, ...]
    plan: Plan | None


Keys = tuple[Round, ...]
Mutant = Literal["", "no last boundary rule", "cleared on release", "read before set", "torn read"]


@dataclass(frozen=True)
class Cluster:
    """What to explore.

    Attributes:
        workers: How many.
        steps: Train steps of each; boundary `steps + 1` is the last.
        lockstep: A step completes only when all workers have entered it.
        death: "worker" (one dies at any point), "leader" (with it the coordination), "raise" (one leaves fit
            by an exception between boundaries), or "".
        patience: "death": waits end once somebody is gone; "none": at any time.
        notified: Workers that may get notice, at any time; None is all.
        goes_on: Rounds that worker 0 may call in which training goes on.
        late_notices: Also tell apart whether a worker got notice before it answered another's call.
        reduced: Leave out orders of steps that commute.
    """

    workers: int
    steps: int
    lockstep: bool
    death: Literal["", "worker", "leader", "raise"] = ""
    patience: Literal["death", "none"] = "death"
    notified: frozenset[int] | None = None
    goes_on: int = 0
    late_notices: bool = True
    reduced: bool = False
    mutant: Mutant = ""


@dataclass
class Found:
    """What an exploration came across."""

    states: int = 0
    endings: dict[tuple[str, ...], int] = field(default_factory=dict)
    rounds: int = 0


_COMPLETE, _BROKEN, _IMPATIENT, _SILENT = 1, 2, 4, 8


class Explorer:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.last = cluster.steps + 1
        self.members = tuple(range(cluster.workers))
        notified = frozenset(self.members) if cluster.notified is None else cluster.notified
        self._workers: list[Worker] = []
        self._worker_ids: dict[Worker, int] = {}
        self._progress: list[int] = []
        self._gone: list[bool] = []
        self._ended: list[bool] = []
        self._rounds: list[int] = []
        self._keys: list[Keys] = []
        self._key_ids: dict[Keys, int] = {}
        self._memo: dict[tuple[int, int, int, int], list[tuple[str, int, int]]] = {}
        self._at_once: set[tuple[int, int, int, int]] = set()
        self._trimmed: dict[tuple[int, int], int] = {}
        start = [
            Worker(Main.RUNNING, 0, Watch.WAITING, None, Member(i), False, int(i in notified), None, -1)
            for i in self.members
        ]
        calm = not cluster.death and cluster.patience == "death"
        self._certain = cluster.reduced and calm  # no round is ever aborted
        self._reducible = self.members if cluster.reduced else ()
        if cluster.reduced and cluster.death:
            assert cluster.death == "worker", "which steps commute with these deaths is not worked out"
            self._reducible = self.members[:-1]
        self.start = (*(self._worker_id(worker) for worker in start), self._key_id(()))

    def _worker_id(self, worker: Worker) -> int:
        found = self._worker_ids.get(worker)
        if found is None:
            found = self._worker_ids[worker] = len(self._workers)
            self._workers.append(worker)
            self._progress.append(worker.entered - (Main.RUNNING < worker.main <= Main.LEFT))
            ended_alone = worker.main is Main.ALONE and self.cluster.mutant != "no last boundary rule"
            self._gone.append(ended_alone or worker.main > Main.ALONE)
            self._ended.append(worker.main >= Main.LEFT)
            self._rounds.append(99 if worker.member is None else worker.member.round)
        return found

    def _key_id(self, keys: Keys) -> int:
        found = self._key_ids.get(keys)
        if found is None:
            found = self._key_ids[keys] = len(self._keys)
            self._keys.append(keys)
        return found

    def explore(self) -> Found:
        found = Found()
        seen = {self.start}
        frontier = [self.start]
        while frontier:
            following: list[tuple[int, ...]] = []
            for state in frontier:
                try:
                    successors = self._successors(state)
                    if not successors:
                        self._check_ending(state, found)
                except (Violation, ProtocolError) as error:
                    raise Violation(f"{error}\n{self._path(state)}") from error
                for _, successor in successors:
                    if successor not in seen:
                        seen.add(successor)
                        following.append(successor)
            frontier = following
        found.states = len(seen)
        found.rounds = 1 + max((keys[-1].number for keys in self._keys if keys), default=-1)
        return found

    def _path(self, goal: tuple[int, ...]) -> str:
        """The shortest way to `goal`, walked again: to remember every state's parent would cost memory."""
        came: dict[tuple[int, ...], tuple[str, tuple[int, ...]]] = {}
        frontier = [self.start]
        while goal not in came and goal != self.start:
            following = []
            for state in frontier:
                for label, successor in self._successors(state):
                    if successor not in came:
                        came[successor] = (label, state)
                        following.append(successor)
            frontier = following
        labels: list[str] = []
        while goal != self.start:
            label, goal = came[goal]
            labels.append(label)
        return "after: " + "; ".join(reversed(labels))

    def _successors(self, state: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
        cluster, ended, gone, progress = self.cluster, self._ended, self._gone, self._progress
        count = cluster.workers
        keys = state[count]
        locals_ = state[:count]
        anyone_gone = any(gone[local] for local in locals_)
        silent = cluster.death == "leader" and self._workers[state[0]].main is Main.DEAD
        shared = (_IMPATIENT if anyone_gone or cluster.patience == "none" else 0) | (_SILENT if silent else 0)
        slowest = min(progress[local] for local in locals_)
        successors: list[tuple[str, tuple[int, ...]]] = []
        for i in range(count):
            local = locals_[i]
            if ended[local]:
                continue
            facts = shared
            mine = progress[local]
            if not cluster.lockstep or mine == 0 or slowest >= mine:
                facts |= _COMPLETE
            elif anyone_gone and any(ended[other] and progress[other] < mine for other in locals_):
                facts |= _BROKEN
            memo = (i, local, keys, facts)
            steps = self._memo.get(memo)
            if steps is None:
                steps = self._memo[memo] = [
                    (label, self._worker_id(worker), self._key_id(after))
                    for label, worker, after in self._steps(i, self._workers[local], self._keys[keys], facts)
                ]
                if self._commutes(i, self._workers[local], self._keys[keys]) and len(steps) == 1:
                    self._at_once.add(memo)
            alone = memo in self._at_once
            if alone:
                successors.clear()
            for label, worker_id, key_id in steps:
                if worker_id == local:
                    successors.append((label, (*locals_, key_id)))
                    continue
                changed = (*locals_[:i], worker_id, *locals_[i + 1 :])
                if self._rounds[worker_id] != self._rounds[local]:
                    key_id = self._trim(key_id, min(self._rounds[other] for other in changed))
                successors.append((label, (*changed, key_id)))
            if alone:
                return successors
        victim = 0 if cluster.death == "leader" else count - 1
        if cluster.death in ("worker", "leader") and not ended[locals_[victim]]:
            dead = self._worker_id(self._end(self._workers[locals_[victim]], Main.DEAD))
            changed = (*locals_[:victim], dead, *locals_[victim + 1 :])
            key_id = self._trim(keys, min(self._rounds[other] for other in changed))
            successors.append((f"{victim} dies", (*changed, key_id)))
        return successors

    def _commutes(self, i: int, worker: Worker, keys: Keys) -> bool:
        """Whether the worker's only step may be run before all others (never so for one that may die)."""
        if i not in self._reducible:
            return False
        assert worker.member is not None
        match worker.member.state:
            case State.PLANNED | State.ACTING:
                return (
                    True  # its watcher is idle and its plan fixed: nobody reads what its main thread writes
                )
            case State.ANSWERED if worker.watch is Watch.READ:
                return True  # only the caller looks at an answer, and it waits for all of them
            case State.ANSWERED if worker.watch is Watch.PUBLISHED:
                plan = self._round(keys, worker.member.round).plan
                return self._certain or (plan is not None and plan.abort is None)
            case _:
                return False

    def _trim(self, key_id: int, oldest: int) -> int:
        """Forget rounds that every worker has left: nobody looks at their keys again."""
        found = self._trimmed.get((key_id, oldest))
        if found is None:
            kept = tuple(entry for entry in self._keys[key_id] if entry.number >= oldest)
            found = self._trimmed[key_id, oldest] = self._key_id(kept)
        return found

    @staticmethod
    def _end(worker: Worker, how: Main) -> Worker:
        # What ended matters to others only by how far it came.
        came = worker.entered - (Main.RUNNING < worker.main < Main.LEFT)
        entered = worker.entered if how is Main.LEFT else came
        return Worker(how, entered, Watch.WAITING, None, None, False, 0, None, -1)

    # One worker's steps.

    def _steps(self, i: int, worker: Worker, keys: Keys, facts: int) -> list[tuple[str, Worker, Keys]]:
        assert worker.member is not None
        current = self._round(keys, worker.member.round)
        steps: list[tuple[str, Worker, Keys]] = []
        if not facts & _SILENT:
            steps += self._notice_steps(i, worker, keys, current)
            steps += self._watcher_steps(i, worker, keys, current, bool(facts & _IMPATIENT))
        elif worker.member.state in (State.LISTENING, State.ANSWERED):
            lost = advance(worker.member, Event.LOST)
            steps.append((f"{i} loses coordination", worker._replace(member=lost), keys))
        # With the reduction the watcher's commuting step goes first, then the main thread's.
        if (
            len(steps) == 1
            and worker.watch in (Watch.READ, Watch.PUBLISHED)
            and self._commutes(i, worker, keys)
        ):
            return steps
        steps += self._main_steps(i, worker, keys, current, facts)
        return steps

    def _round(self, keys: Keys, number: int) -> Round:
        for entry in keys:
            if entry.number == number:
                return entry
        return Round(number, None, (None,) * self.cluster.workers, None)

    @staticmethod
    def _put(keys: Keys, changed: Round) -> Keys:
        if changed.plan is not None:  # no one reads the answers again
            changed = changed._replace(answers=())
        others = [entry for entry in keys if entry.number != changed.number]
        return tuple(sorted([*others, changed]))

    def _notice_steps(
        self, i: int, worker: Worker, keys: Keys, current: Round
    ) -> list[tuple[str, Worker, Keys]]:
        steps: list[tuple[str, Worker, Keys]] = []
        if worker.calls and current.call is None:
            noticed = worker._replace(noticed=True, calls=worker.calls - 1)
            call = Call(i, Kind.PREEMPTED)
            steps.append(
                (f"{i} gets notice and calls", noticed, self._put(keys, current._replace(call=call)))
            )
        elif self.cluster.late_notices and worker.calls and not worker.noticed and self._undecided(worker):
            steps.append((f"{i} gets notice; a call stands", worker._replace(noticed=True), keys))
        if i == 0 and current.call is None and current.number < self.cluster.goes_on:
            call = Call(i, Kind.PERIODIC)
            steps.append(
                (f"{i} calls for a periodic save", worker, self._put(keys, current._replace(call=call)))
            )
        return steps

    @staticmethod
    def _undecided(worker: Worker) -> bool:
        assert worker.member is not None
        return worker.member.state is State.LISTENING or worker.watch in (Watch.SEEN, Watch.TORN)

    def _watcher_steps(
        self, i: int, worker: Worker, keys: Keys, current: Round, impatient: bool
    ) -> list[tuple[str, Worker, Keys]]:
        member, mutant = worker.member, self.cluster.mutant
        assert member is not None
        match worker.watch:
            case Watch.WAITING if member.state is State.LISTENING and current.call is not None:
                if mutant == "read before set":
                    return [(f"{i} reads", worker._replace(watch=Watch.EARLY, at=self._answer(worker)), keys)]
                called = advance(member, Event.CALL, call=current.call)
                watch = Watch.SEEN if called.attention else Watch.WAITING
                return [
                    (f"{i} sees the call, sets attention", worker._replace(watch=watch, member=called), keys)
                ]
            case Watch.EARLY:
                assert current.call is not None
                called = advance(member, Event.CALL, call=current.call)
                return [(f"{i} sets attention", worker._replace(watch=Watch.READ, member=called), keys)]
            case Watch.SEEN if mutant == "torn read":
                at = answer(i, worker.entered, True, None, worker.noticed)
                return [(f"{i} reads entered", worker._replace(watch=Watch.TORN, at=at), keys)]
            case Watch.TORN:
                assert worker.at is not None
                at = answer(i, worker.at.boundary, worker.main is Main.HELD, None, worker.noticed)
                return [(f"{i} reads held", worker._replace(watch=Watch.READ, at=at), keys)]
            case Watch.SEEN:
                at = self._answer(worker)
                return [(f"{i} reads at {at.boundary}", worker._replace(watch=Watch.READ, at=at), keys)]
            case Watch.READ:
                published = worker._replace(watch=Watch.PUBLISHED, at=None)
                if current.plan is not None:  # aborted meanwhile: the answer is read by no one
                    return [(f"{i} publishes late", published, keys)]
                answers = (*current.answers[:i], worker.at, *current.answers[i + 1 :])
                return [(f"{i} publishes", published, self._put(keys, current._replace(answers=answers)))]
            case Watch.PUBLISHED:
                return self._plan_steps(i, worker, keys, current, impatient)
            case _:
                return []

    @staticmethod
    def _answer(worker: Worker) -> At:
        assert worker.member is not None
        position = Position(0, "train", worker.entered)
        held = worker.main is Main.HELD
        return answer(worker.member.index, worker.entered, held, position, worker.noticed)

    def _plan_steps(
        self, i: int, worker: Worker, keys: Keys, current: Round, impatient: bool
    ) -> list[tuple[str, Worker, Keys]]:
        member, call = worker.member, current.call
        assert member is not None
        assert call is not None
        if current.plan is not None:
            told = advance(member, Event.PLAN, plan=current.plan)
            return [(f"{i} reads the plan", worker._replace(watch=Watch.WAITING, member=told), keys)]
        steps: list[tuple[str, Worker, Keys]] = []
        if call.member == i and None not in current.answers:
            answers = [at for at in current.answers if at is not None]
            plan = make_plan(call, answers, self.members, "attempt")
            steps.append((f"{i} plans {plan.target}", worker, self._put(keys, current._replace(plan=plan))))
        if impatient:
            abort = current._replace(plan=abort_plan(call, "waited too long"))
            steps.append((f"{i} aborts the round", worker, self._put(keys, abort)))
        return steps

    def _main_steps(
        self, i: int, worker: Worker, keys: Keys, current: Round, facts: int
    ) -> list[tuple[str, Worker, Keys]]:
        last = worker.entered == self.last
        match worker.main:
            case Main.RUNNING:
                steps: list[tuple[str, Worker, Keys]] = []
                if facts & _COMPLETE:
                    entered = worker._replace(main=Main.ENTERED, entered=worker.entered + 1)
                    steps.append((f"{i} enters {entered.entered}", entered, keys))
                raises = self.cluster.death == "raise" and i == self.cluster.workers - 1
                if facts & _BROKEN or raises:
                    steps.append(self._raise(i, worker, keys, current, facts))
                return steps
            case Main.ENTERED if last and self.cluster.mutant != "no last boundary rule":
                return [self._ask(i, worker, keys, current, facts)]
            case Main.ENTERED:
                if self._attention(worker):
                    return [(f"{i} sees attention", worker._replace(main=Main.MARKING), keys)]
                return [self._pass(i, worker, keys, last)]
            case Main.MARKING:
                return [(f"{i} holds", worker._replace(main=Main.HELD), keys)]
            case Main.HELD:
                return self._held(i, worker, keys)
            case Main.ACTING:
                return [self._acted(i, worker, keys, last)]
            case _:
                return []

    def _attention(self, worker: Worker) -> bool:
        assert worker.member is not None
        cleared = self.cluster.mutant == "cleared on release" and worker.released == worker.member.round
        return worker.member.attention and not cleared

    def _ask(
        self, i: int, worker: Worker, keys: Keys, current: Round, facts: int
    ) -> tuple[str, Worker, Keys]:
        assert worker.member is not None
        if facts & _SILENT:
            member = advance(worker.member, Event.LOST)
            return (f"{i} cannot call at the end", worker._replace(main=Main.MARKING, member=member), keys)
        asked = worker._replace(main=Main.MARKING, asked=worker.member.round)
        if current.call is None:
            keys = self._put(keys, current._replace(call=Call(i, Kind.FINISHED)))
        return (f"{i} calls finished", asked, keys)

    def _raise(
        self, i: int, worker: Worker, keys: Keys, current: Round, facts: int
    ) -> tuple[str, Worker, Keys]:
        if current.call is None and not facts & _SILENT:
            keys = self._put(keys, current._replace(call=Call(i, Kind.FAILED)))
        return (f"{i} raises", self._end(worker, Main.RAISED), keys)

    def _held(self, i: int, worker: Worker, keys: Keys) -> list[tuple[str, Worker, Keys]]:
        assert worker.member is not None
        last = worker.entered == self.last
        knows_last = last and self.cluster.mutant != "no last boundary rule"
        decision = held_decision(worker.member, worker.entered, last=knows_last, asked=worker.asked)
        if decision is Decision.HOLD:
            return []
        if decision is Decision.ACT:
            acting = advance(worker.member, Event.REACHED)
            return [(f"{i} acts", worker._replace(main=Main.ACTING, member=acting), keys)]
        if worker.member.state is State.PLANNED and self.cluster.mutant == "cleared on release":
            worker = worker._replace(released=worker.member.round)
        return [self._pass(i, worker, keys, last)]

    def _pass(self, i: int, worker: Worker, keys: Keys, last: bool) -> tuple[str, Worker, Keys]:
        member = worker.member
        assert member is not None
        # A member that lost coordination cannot know the plan any more.
        known = [
            entry.plan for entry in keys if entry.number >= member.round and member.state is not State.LOST
        ]
        for plan in known:
            if plan is not None and plan.abort is None and worker.entered >= plan.target:
                raise Violation(f"worker {i} passes boundary {worker.entered}, target {plan.target}")
        if last:
            if member.state is State.LISTENING:
                advance(member, Event.FINISH)
            return (f"{i} ends alone", self._end(worker, Main.ALONE), keys)
        return (f"{i} passes {worker.entered}", worker._replace(main=Main.RUNNING), keys)

    def _acted(self, i: int, worker: Worker, keys: Keys, last: bool) -> tuple[str, Worker, Keys]:
        member = worker.member
        assert member is not None
        assert member.plan is not None
        plans = [entry.plan for entry in keys if entry.number == member.round]
        if plans != [member.plan]:
            raise Violation(f"worker {i} acts on {member.plan}; what stands is {plans}")
        event = outcome(worker.entered, member.plan, last)
        after = advance(member, event)
        if worker.entered != member.plan.target and event is not Event.FINISH:
            raise Violation(f"worker {i} acts at {worker.entered}, target {member.plan.target}")
        if event is Event.ACTED:
            return (f"{i} trains on", worker._replace(main=Main.RUNNING, member=after), keys)
        how = Main.FINISHED if event is Event.FINISH else Main.LEFT
        return (f"{i} has {how.name.lower()}", self._end(worker, how), keys)

    # What must hold where nothing can happen any more.

    def _check_ending(self, state: tuple[int, ...], found: Found) -> None:
        workers = [self._workers[local] for local in state[:-1]]
        stuck = [i for i, worker in enumerate(workers) if worker.main < Main.LEFT]
        if stuck:
            raise Violation(f"workers {stuck} are stuck")
        names = tuple(worker.main.name for worker in workers)
        living = {name for name in names if name not in ("DEAD", "RAISED")}
        cluster = self.cluster
        # Without the rule, a run without a notice ends alone; what must be found is a stuck worker.
        ruled = cluster.mutant != "no last boundary rule"
        calm = not cluster.death and cluster.patience == "death" and ruled
        if len({worker.entered for worker in workers if worker.main is Main.LEFT}) > 1:
            raise Violation(f"members left at different boundaries: {workers}")
        if cluster.death != "leader" and ruled and len(living) > 1:
            raise Violation(f"some act and some do not: {names}")
        if calm and living not in ({"LEFT"}, {"FINISHED"}):
            raise Violation(f"not all act or all finish: {names}")
        found.endings[names] = found.endings.get(names, 0) + 1


def explore(cluster: Cluster) -> Found:
    """Explore every state of `cluster`. Raises `Violation` with the shortest path to the first bad one."""
    return Explorer(cluster).explore()
