"""What one worker of a small cluster can do next: its threads' accesses to shared memory and to the keys.

Each step is atomic, as far as the real accesses are: one method of `keras_preempt.agreement.member.Member`, which a
fit's threads call under a lock, or one access to a key. Which decision is right is not worked out here; what must hold
whatever is decided is checked. `explorer.py` puts the workers' steps in every order; `reduction.py` leaves some out.
"""

from __future__ import annotations

from keras_preempt.agreement import alignment
from keras_preempt.agreement import member as rules
from keras_preempt.agreement.alignment import Decision, State, abort_plan, make_plan
from keras_preempt.agreement.grace import Standing
from keras_preempt.agreement.member import CallRequest, Member
from keras_preempt.agreement.messages import Call, Failure, Plan, Position
from tests.agreement.alignment_cluster import (
    RESERVE,
    TIMES,
    Cluster,
    Facts,
    Keys,
    Main,
    Round,
    Step,
    Violation,
    Watch,
    Worker,
    frozen,
    put,
    round_of,
    say,
    thawed,
)
from tests.agreement.reduction import Reduction
from tests.agreement.told import check_call, check_notices, notice_of, times


class Model:
    """The steps of one worker of `cluster`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.last = cluster.steps + 1
        self.members = tuple(range(cluster.workers))
        self._reduction = Reduction(cluster)

    def script(self, i: int) -> str:
        return self.cluster.scripts[i] if i < len(self.cluster.scripts) else ""

    def start(self, i: int) -> Worker:
        """Worker `i` as fit begins."""
        member = Member(i, Standing())
        assert member.start(TIMES[0], RESERVE) is None
        return Worker(Main.RUNNING, 0, Watch.WAITING, member=frozen(member))

    @staticmethod
    def end(worker: Worker, how: Main) -> Worker:
        """`worker` ended: all that matters to others is how far it came."""
        came = worker.entered - (Main.RUNNING < worker.main < Main.LEFT)
        return Worker(how, worker.entered if how is Main.LEFT else came, Watch.ENDED)

    def steps(self, i: int, worker: Worker, keys: Keys, facts: int) -> tuple[list[Step], bool]:
        """Each step that worker `i` can do next, and whether these may be run before all steps of the others."""
        heeded = self._without_vain_calls(worker, keys)
        if heeded != worker:
            return [(f"{i} need not call", heeded, keys)], True
        member = thawed(worker.member)
        current = round_of(keys, member.round, self.cluster.workers)
        others: list[Step] = []
        watcher: list[Step] = []
        if facts & Facts.SILENT:
            # What the threads had to put gets nowhere.
            worker = worker._replace(listener=None, countdown=None, thread=None, watcher=None)
            if member.state in (State.LISTENING, State.ANSWERED):
                member.lose()
                lost = worker._replace(member=frozen(member), watch=Watch.ENDED, at=None)
                others.append((f"{i} loses coordination", lost, keys))
        else:
            if worker.main < Main.LEFT:
                check_notices(i, self.script(i), worker, member, current, self.last)
                others += self._notice_steps(i, worker, keys)
            others += self._put_steps(i, worker, keys)
            watcher += self._watcher_steps(i, worker, keys, current, bool(facts & Facts.IMPATIENT))
        main = self._main_steps(i, worker, keys, current, facts) if worker.main < Main.LEFT else []
        first = self._reduction.first(i, worker, current, facts, others, watcher, main)
        return (first, True) if first else (others + watcher + main, False)

    # -- Calls -------------------------------------------------------------------------------------

    def _say(self, request: CallRequest, keys: Keys) -> Keys:
        return say(request, keys, self.cluster.workers)

    def _without_vain_calls(self, worker: Worker, keys: Keys) -> Worker:
        """A call where one stands already, or for a round that everyone has left, changes nothing."""
        for name in ("listener", "countdown", "thread", "watcher"):
            request: CallRequest | None = getattr(worker, name)
            if request is None:
                continue
            stands = round_of(keys, request.round, self.cluster.workers).call is not None
            if stands or request.round < thawed(worker.member).round:
                worker = worker._replace(**{name: None})
        return worker

    def _put_steps(self, i: int, worker: Worker, keys: Keys) -> list[Step]:
        return [
            (f"{i} calls ({name})", worker._replace(**{name: None}), self._say(request, keys))
            for name in ("listener", "countdown", "thread", "watcher")
            if (request := getattr(worker, name)) is not None
        ]

    # -- Notices and the countdown ------------------------------------------------------------------

    def _notice_steps(self, i: int, worker: Worker, keys: Keys) -> list[Step]:
        steps: list[Step] = []
        for time in times(self.script(i), worker):
            member, now, then = thawed(worker.member), TIMES[time], worker._replace(time=time)
            if worker.heard < len(self.script(i)) and worker.listener is None:
                steps.append(self._next_of_script(i, then, keys))
            due = member.due(RESERVE)
            if due is not None and now >= due and worker.countdown is None:
                request = member.count_down(now, RESERVE)
                check_call(i, self.script(i), then, request)
                counted = then._replace(member=frozen(member), countdown=request)
                steps.append((f"{i} has counted down", counted, keys))
        return steps

    def _next_of_script(self, i: int, worker: Worker, keys: Keys) -> Step:
        member, now = thawed(worker.member), TIMES[worker.time]
        what = self.script(i)[worker.heard]
        after = worker._replace(heard=worker.heard + 1)
        request: CallRequest | None = None
        if what == "s":
            announced = member.expect(now, worker.entered) and member.state is State.LISTENING
            after = after._replace(announced=after.announced or announced)
        elif what == "p":
            request = member.call_periodic()
        elif what == "i":
            _, request = member.interrupt(now, RESERVE)
            check_call(i, self.script(i), after, request)
        elif what == "w":
            member.withdraw(notice_of(worker.heard - 1, self.script(i)[worker.heard - 1]))
        else:
            _, request = member.notify(notice_of(worker.heard, what), now, RESERVE)
            check_call(i, self.script(i), after, request)
        after = after._replace(member=frozen(member), listener=request)
        return (f"{i} hears {what} at {now:.0f}", after, keys)

    # -- The watcher --------------------------------------------------------------------------------

    def _watcher_steps(
        self, i: int, worker: Worker, keys: Keys, current: Round, impatient: bool
    ) -> list[Step]:
        member, mutant = thawed(worker.member), self.cluster.mutant
        match worker.watch:
            case Watch.WAITING if current.call is not None and member.state is State.LISTENING:
                if mutant == "read before set" and isinstance(current.call, Call):
                    at = alignment.answer(i, worker.entered, member.held, bool(member.standing))
                    return [(f"{i} reads", worker._replace(watch=Watch.EARLY, at=at), keys)]
                return [self._hear(i, worker, keys, current, Watch.SEEN)]
            case Watch.EARLY:
                return [self._hear(i, worker, keys, current, Watch.READ)]
            case Watch.SEEN if mutant == "torn read":
                at = alignment.answer(i, worker.entered, self._here(worker), bool(member.standing))
                return [(f"{i} reads entered", worker._replace(watch=Watch.TORN, at=at), keys)]
            case Watch.TORN:
                assert worker.at is not None
                at = alignment.answer(i, worker.at.boundary, member.held, worker.at.doomed)
                return [(f"{i} reads held", worker._replace(watch=Watch.READ, at=at), keys)]
            case Watch.SEEN:
                at = member.answer(worker.entered)
                return [(f"{i} reads at {at.boundary}", worker._replace(watch=Watch.READ, at=at), keys)]
            case Watch.READ:
                published = worker._replace(watch=Watch.PUBLISHED, at=None)
                if current.plan is not None:  # aborted meanwhile: the answer is read by no one
                    return [(f"{i} publishes late", published, keys)]
                answers = (*current.answers[:i], worker.at, *current.answers[i + 1 :])
                return [(f"{i} publishes", published, put(keys, current._replace(answers=answers)))]
            case Watch.PUBLISHED:
                return self._plan_steps(i, worker, keys, current, impatient)
            case Watch.CALLING if worker.watcher is None:
                return [(f"{i} listens again", self._listening(worker, member), keys)]
            case _:
                return []

    def _here(self, worker: Worker) -> Position:
        return Position(0, "train", worker.entered)

    def _hear(self, i: int, worker: Worker, keys: Keys, current: Round, then: Watch) -> Step:
        assert current.call is not None
        member = thawed(worker.member)
        member.hear(current.call)
        heard = worker._replace(member=frozen(member), announced=False)
        if isinstance(current.call, Failure):
            return (f"{i} hears of a failure", self._watched(heard), keys)
        return (f"{i} sees the call", heard._replace(watch=then), keys)

    def _watched(self, worker: Worker) -> Worker:
        """The watcher has ended."""
        if worker.main >= Main.LEFT:
            return self.end(worker, worker.main)
        return worker._replace(watch=Watch.ENDED)

    def _listening(self, worker: Worker, member: Member) -> Worker:
        return worker._replace(watch=Watch.WAITING) if member.open else self._watched(worker)

    def _plan_steps(self, i: int, worker: Worker, keys: Keys, current: Round, impatient: bool) -> list[Step]:
        call = current.call
        assert isinstance(call, Call)
        if current.plan is not None:
            return [
                self._taken(i, worker._replace(time=time), keys, current.plan)
                for time in (times(self.script(i), worker) if current.plan.abort else [worker.time])
            ]
        steps: list[Step] = []
        if call.member == i and None not in current.answers:
            answers = [at for at in current.answers if at is not None]
            plan = make_plan(call, answers, self.members)
            steps.append((f"{i} plans {plan.target}", worker, put(keys, current._replace(plan=plan))))
        if impatient:
            abort = current._replace(plan=abort_plan(call, "waited too long"))
            steps.append((f"{i} aborts the round", worker, put(keys, abort)))
        return steps

    def _taken(self, i: int, worker: Worker, keys: Keys, plan: Plan) -> Step:
        member = thawed(worker.member)
        request = member.take(plan, TIMES[worker.time], RESERVE)
        check_call(i, self.script(i), worker, request)
        told = worker._replace(member=frozen(member), watcher=request, watch=Watch.CALLING)
        return (f"{i} reads the plan", told if request else self._listening(told, member), keys)

    # -- The main thread ----------------------------------------------------------------------------

    def _main_steps(self, i: int, worker: Worker, keys: Keys, current: Round, facts: int) -> list[Step]:
        member = thawed(worker.member)
        last = worker.entered == self.last
        match worker.main:
            case Main.RUNNING:
                steps: list[Step] = []
                if facts & Facts.COMPLETE:
                    entered = worker._replace(main=Main.ENTERED, entered=worker.entered + 1)
                    steps.append((f"{i} enters {entered.entered}", entered, keys))
                raises = self.cluster.death == "raise" and i == self.cluster.workers - 1
                if facts & Facts.BROKEN or raises:
                    steps.append(self._raise(i, worker, keys, facts))
                return steps
            case Main.ENTERED if last:
                return self._ask(i, worker, keys, member)
            case Main.ENTERED if self._attention(worker, member):
                return self._held(i, worker, keys, member, self._here(worker))
            case Main.ENTERED:
                if worker.announced:
                    raise Violation(f"worker {i} begins a step although a notice was announced")
                return [self._pass(i, worker, keys, member)]
            case Main.ASKING if facts & Facts.SILENT:
                member.lose()
                lost = worker._replace(main=Main.MARKING, member=frozen(member))
                return [(f"{i} cannot call at the end", lost, keys)]
            case Main.ASKING if worker.thread is None:
                return [(f"{i} has called finished", worker._replace(main=Main.MARKING), keys)]
            case Main.MARKING:
                return self._held(i, worker, keys, member, self._here(worker))
            case Main.HELD:
                return self._held(i, worker, keys, member, None)
            case Main.ACTING:
                return self._acted(i, worker, keys, member)
            case Main.CALLING if worker.thread is None:
                return [(f"{i} trains on", worker._replace(main=Main.RUNNING), keys)]
            case _:
                return []

    def _attention(self, worker: Worker, member: Member) -> bool:
        cleared = self.cluster.mutant == "cleared on release" and member.state is State.PLANNED
        return member.attention and not (cleared and member.held is None and member.asks == 0)

    def _ask(self, i: int, worker: Worker, keys: Keys, member: Member) -> list[Step]:
        if member.awaits_call:
            return self._late_announcement(i, worker, keys, member)
        request = member.finish()
        if request is None:
            member.leave()
            return [(f"{i} ends alone", self.end(worker, Main.ALONE), keys)]
        if isinstance(request.call, Failure) and member.round < rules.ROUNDS_PER_REASON:
            raise Violation(f"worker {i} gives up after {member.round} rounds")
        asking = worker._replace(main=Main.ASKING, member=frozen(member), thread=request)
        return [(f"{i} asks for the end", asking, keys)]

    def _late_announcement(self, i: int, worker: Worker, keys: Keys, member: Member) -> list[Step]:
        for time in times(self.script(i), worker):
            if member.expect_no_more(TIMES[time]):
                after = worker._replace(member=frozen(member), announced=False, time=time)
                return [(f"{i} expects no notice any more", after, keys)]
        return []

    def _raise(self, i: int, worker: Worker, keys: Keys, facts: int) -> Step:
        member = thawed(worker.member)
        request = member.close("an exception")
        if not facts & Facts.SILENT:
            keys = self._say(request, keys)
        if worker.watch in (Watch.WAITING, Watch.ENDED) or facts & Facts.SILENT:
            return (f"{i} raises", self.end(worker, Main.RAISED), keys)
        # Its watcher still answers in the round that stands.
        ended = self.end(worker, Main.RAISED)
        return (f"{i} raises", ended._replace(member=frozen(member), watch=worker.watch, at=worker.at), keys)

    def _held(self, i: int, worker: Worker, keys: Keys, member: Member, mark: Position | None) -> list[Step]:
        """Holds, or asks again; `mark` is the boundary if the thread only gets there now."""
        if mark is not None:
            member.hold(mark)
        decision = member.let_go(worker.entered)
        if decision is Decision.HOLD:
            if mark is not None:
                return [(f"{i} holds", worker._replace(main=Main.HELD, member=frozen(member)), keys)]
            return self._late_announcement(i, worker, keys, member)
        after = worker._replace(member=frozen(member))
        if decision is Decision.ACT:
            return [(f"{i} acts", after._replace(main=Main.ACTING), keys)]
        return [self._pass(i, after, keys, member)]

    def _pass(self, i: int, worker: Worker, keys: Keys, member: Member) -> Step:
        # A member that lost coordination cannot know the plan any more.
        known = () if member.state is State.LOST else keys
        for plan in (entry.plan for entry in known if entry.number >= member.round):
            if plan is not None and plan.abort is None and worker.entered >= plan.target:
                raise Violation(f"worker {i} passes boundary {worker.entered}, target {plan.target}")
        if worker.entered == self.last:  # Asks again, or gives up.
            return (f"{i} is let go at the end", worker._replace(main=Main.ENTERED), keys)
        return (f"{i} passes {worker.entered}", worker._replace(main=Main.RUNNING), keys)

    def _acted(self, i: int, worker: Worker, keys: Keys, member: Member) -> list[Step]:
        plan = member.plan
        assert plan is not None
        plans = [entry.plan for entry in keys if entry.number == member.round]
        if plans != [plan]:
            raise Violation(f"worker {i} acts on {plan}; what stands is {plans}")
        last = worker.entered == self.last
        if worker.entered != plan.target and not last:
            raise Violation(f"worker {i} acts at {worker.entered}, target {plan.target}")
        if plan.goes_on and not last:
            at_times = [worker._replace(time=time) for time in times(self.script(i), worker)]
            return [self._goes_on(i, each, keys) for each in at_times]
        member.leave()
        if last and member.state is not State.FINISHED:
            raise Violation(f"worker {i} leaves at the last boundary instead of finishing")
        how = {State.LEFT: Main.LEFT, State.FINISHED: Main.FINISHED}[member.state]
        return [(f"{i} has {how.name.lower()}", self.end(worker, how), keys)]

    def _goes_on(self, i: int, worker: Worker, keys: Keys) -> Step:
        member = thawed(worker.member)
        request = member.acted(TIMES[worker.time], RESERVE)
        check_call(i, self.script(i), worker, request)
        after = worker._replace(main=Main.CALLING, member=frozen(member), thread=request)
        return (f"{i} trains on", after if request else after._replace(main=Main.RUNNING), keys)
