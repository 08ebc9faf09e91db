"""What one worker of a small cluster can do next: its threads' accesses to shared memory and to the keys.

Each step is atomic, as far as the real accesses are. What the threads decide is asked of the functions of
`keras_preempt.agreement.alignment`; `explorer.py` puts the workers' steps in every order.
"""

from __future__ import annotations

from keras_preempt.agreement.alignment import (
    At,
    Call,
    Decision,
    Event,
    Kind,
    Member,
    Position,
    State,
    abort_plan,
    advance,
    answer,
    held_decision,
    make_plan,
    outcome,
)
from tests.agreement.alignment_cluster import Cluster, Facts, Keys, Main, Round, Violation, Watch, Worker


class Model:
    """The steps of one worker of `cluster`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.last = cluster.steps + 1
        self.members = tuple(range(cluster.workers))
        # No round is ever aborted.
        self._certain = not cluster.death and cluster.patience == "death"
        self._reducible = self.members if cluster.reduced else ()
        if cluster.reduced and cluster.death:
            assert cluster.death == "worker", "which steps commute with these deaths is not worked out"
            self._reducible = self.members[:-1]

    def start(self, i: int) -> Worker:
        """Worker `i` as fit begins."""
        notified = self.cluster.notified is None or i in self.cluster.notified
        return Worker(Main.RUNNING, 0, Watch.WAITING, None, Member(i), False, int(notified), None, -1)

    @staticmethod
    def end(worker: Worker, how: Main) -> Worker:
        """`worker` ended: all that matters to others is how far it came."""
        came = worker.entered - (Main.RUNNING < worker.main < Main.LEFT)
        entered = worker.entered if how is Main.LEFT else came
        return Worker(how, entered, Watch.WAITING, None, None, False, 0, None, -1)

    def steps(self, i: int, worker: Worker, keys: Keys, facts: Facts) -> list[tuple[str, Worker, Keys]]:
        """Each step that worker `i` can do next: what to call it, the worker after it, the keys after it."""
        assert worker.member is not None
        current = self._round(keys, worker.member.round)
        steps: list[tuple[str, Worker, Keys]] = []
        if not facts & Facts.SILENT:
            steps += self._notice_steps(i, worker, keys, current)
            steps += self._watcher_steps(i, worker, keys, current, bool(facts & Facts.IMPATIENT))
        elif worker.member.state in (State.LISTENING, State.ANSWERED):
            lost = advance(worker.member, Event.LOST)
            steps.append((f"{i} loses coordination", worker._replace(member=lost), keys))
        # With the reduction the watcher's commuting step goes first, then the main thread's.
        if (
            len(steps) == 1
            and worker.watch in (Watch.READ, Watch.PUBLISHED)
            and self.commutes(i, worker, keys)
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
            plan = make_plan(call, answers, self.members)
            steps.append((f"{i} plans {plan.target}", worker, self._put(keys, current._replace(plan=plan))))
        if impatient:
            abort = current._replace(plan=abort_plan(call, "waited too long"))
            steps.append((f"{i} aborts the round", worker, self._put(keys, abort)))
        return steps

    def _main_steps(
        self, i: int, worker: Worker, keys: Keys, current: Round, facts: Facts
    ) -> list[tuple[str, Worker, Keys]]:
        last = worker.entered == self.last
        match worker.main:
            case Main.RUNNING:
                steps: list[tuple[str, Worker, Keys]] = []
                if facts & Facts.COMPLETE:
                    entered = worker._replace(main=Main.ENTERED, entered=worker.entered + 1)
                    steps.append((f"{i} enters {entered.entered}", entered, keys))
                raises = self.cluster.death == "raise" and i == self.cluster.workers - 1
                if facts & Facts.BROKEN or raises:
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
        self, i: int, worker: Worker, keys: Keys, current: Round, facts: Facts
    ) -> tuple[str, Worker, Keys]:
        assert worker.member is not None
        if facts & Facts.SILENT:
            member = advance(worker.member, Event.LOST)
            return (f"{i} cannot call at the end", worker._replace(main=Main.MARKING, member=member), keys)
        asked = worker._replace(main=Main.MARKING, asked=worker.member.round)
        if current.call is None:
            keys = self._put(keys, current._replace(call=Call(i, Kind.FINISHED)))
        return (f"{i} calls finished", asked, keys)

    def _raise(
        self, i: int, worker: Worker, keys: Keys, current: Round, facts: Facts
    ) -> tuple[str, Worker, Keys]:
        if current.call is None and not facts & Facts.SILENT:
            keys = self._put(keys, current._replace(call=Call(i, Kind.FAILED)))
        return (f"{i} raises", self.end(worker, Main.RAISED), keys)

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
            return (f"{i} ends alone", self.end(worker, Main.ALONE), keys)
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
        return (f"{i} has {how.name.lower()}", self.end(worker, how), keys)

    def commutes(self, i: int, worker: Worker, keys: Keys) -> bool:
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
