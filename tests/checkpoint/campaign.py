"""Seeded schedules of whole jobs on one store: starts, saves, commits, retention, deaths and returns from the dead.

`run(seed)` simulates one; everything in it follows from the seed. What happens is in `campaign_scenario`, what must
hold in `campaign_checker`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from keras_preempt.checkpoint import commit as committing
from keras_preempt.checkpoint import finding, incarnations, reader, tidying, writer
from keras_preempt.checkpoint.errors import CheckpointError, Fenced
from keras_preempt.checkpoint.finding import CheckpointInfo
from keras_preempt.checkpoint.layout import attempt_directory, attempt_name
from keras_preempt.checkpoint.retention import Retention
from tests.checkpoint.builders import shares_of, values_of
from tests.checkpoint.campaign_bucket import Bucket, Emulator
from tests.checkpoint.campaign_checker import Checker
from tests.checkpoint.campaign_faults import SteppedStore
from tests.checkpoint.campaign_reading import local_of, problem_of, state_of, tensors_of
from tests.checkpoint.campaign_scenario import Fault, Scenario
from tests.checkpoint.campaign_scheduler import Scheduler, Worker
from tests.checkpoint.campaign_store import Memory

Place = Memory | Bucket | Emulator


@dataclass
class Result:
    """What came of a schedule.

    Attributes:
        failed: the first violation; None if there was none.
        steps: operations on the store.
        commits: attempts that workers were told to be committed.
        exceptions: operations after which a manifest was broken as `campaign_checker` permits.
        happened: faults by operation, sort of file and fault.
    """

    failed: str | None
    steps: int
    commits: int
    exceptions: int
    happened: Counter[tuple[str, str, str]]


@dataclass
class _Job:
    members: int
    incarnation: int | None = None
    chosen: CheckpointInfo | None = None
    over: bool = False
    fenced: bool = False
    tidying: tidying.Tidying | None = None
    told: list[str] = field(default_factory=list)


def run(seed: int, place: Place | None = None) -> Result:
    """Simulates one schedule, in memory if there is no other place."""
    return _Simulation(seed, Memory() if place is None else place).run()


class _Simulation:
    def __init__(self, seed: int, place: Place) -> None:
        self.scenario = Scenario.of(seed)
        self.place = place
        self.scheduler = Scheduler(random.Random(f"schedule|{seed}"))
        self.checker = Checker(
            place.read, place.names, self._fail, self.scenario.max_to_keep, self.scenario.keep_every
        )
        self.retention = Retention(self.scenario.max_to_keep, self.scenario.keep_every)
        self.happened: Counter[tuple[str, str, str]] = Counter()
        self.workers: list[Worker] = []
        self.commits = 0
        self.seed = seed

    def _fail(self, why: str) -> None:
        self.scheduler.fail(
            f"seed {self.seed} ({self.scenario.kind}), operation {self.scheduler.step}: {why}"
        )

    def run(self) -> Result:
        for number, (begin, members) in enumerate(self.scenario.jobs):
            job = _Job(members)
            for member in range(members):
                self._start(f"job{number}.w{member}", begin, self._member(job, member))
        for number in range(self.scenario.readers):
            self._start(f"reader{number}", 0, self._reading)
        self.scheduler.run()
        if self.scheduler.failed is None:
            errors = any(what in ("failed", "lost", "late") for _, _, what in self.happened)
            self.checker.at_the_end([worker for worker in self.workers if worker.killed], errors=errors)
            self._start("audit", 0, self._audit, plain=True)
            self.scheduler.run()
        return Result(
            self.scheduler.failed,
            self.scheduler.step,
            self.commits,
            self.checker.exceptions,
            self.happened,
        )

    def _start(
        self, name: str, begin: int, body: Callable[[Worker, SteppedStore], None], *, plain: bool = False
    ) -> None:
        ordered = {} if plain else dict(self.scenario.faults.get(name, {}))
        rate = 0.0 if plain else self.scenario.rate
        chance = random.Random(f"faults|{self.seed}|{name}")

        def faults(number: int, what: str) -> Fault:
            for key in (number, what):
                if key in ordered:
                    return ordered.pop(key)
            return chance.choice(("failed", "lost", "late")) if chance.random() < rate else None

        worker = Worker(name, faults)
        store = SteppedStore(self.place.store(), self.scheduler, worker, self.checker, self.happened)
        worker.paused_until = begin
        self.workers.append(worker)
        self.scheduler.start(worker, lambda: body(worker, store))

    # -- What workers do --------------------------------------------------------------------------------------

    def _member(self, job: _Job, member: int) -> Callable[[Worker, SteppedStore], None]:
        def body(worker: Worker, store: SteppedStore) -> None:
            if member == 0:
                try:
                    self._lead(job, worker, store)
                finally:
                    job.over = job.incarnation is None  # nobody else needs to wait
            else:
                self._follow(job, worker)
            if job.incarnation is not None:
                self._train(job, member, worker, store)

        return body

    def _lead(self, job: _Job, worker: Worker, store: SteppedStore) -> None:
        restore = self.checker.restore_begins()
        before = sum(self.happened.values())
        try:
            infos = finding.newest_first(store)
            incarnation = incarnations.claim(store, {"worker": worker.name})
            self.checker.claimed(worker, incarnation)
            chosen, told = self._restore(store, infos)
        except (CheckpointError, OSError) as error:
            self.checker.restore_ends(worker, restore, None, [str(error)], hindered=self._faulty(before))
            return
        folder = chosen and chosen.directory
        self.checker.restore_ends(worker, restore, folder, told, hindered=self._faulty(before))
        if chosen is None and told:
            return  # as the real start does: an error, and nothing is changed
        job.chosen, job.incarnation = chosen, incarnation

    def _faulty(self, before: int) -> bool:
        return self.scenario.rate > 0 and sum(self.happened.values()) > before

    def _restore(
        self, store: SteppedStore, infos: Iterable[CheckpointInfo]
    ) -> tuple[CheckpointInfo | None, list[str]]:
        told = []
        for info in infos:
            try:
                loaded = reader.load(store, info, 0, 1)
            except (CheckpointError, OSError) as error:
                told.append(f"{info.directory}: {error}")
                continue
            wanted = tensors_of(info.attempt)
            if loaded.values.whole.keys() != wanted.keys() or any(
                loaded.values.whole[name].tobytes() != array.tobytes() for name, array in wanted.items()
            ):
                self._fail(f"restore: {info.directory} was read as something else")
            return info, told
        return None, told

    def _follow(self, job: _Job, worker: Worker) -> None:
        while job.incarnation is None and not job.over:
            self.scheduler.wait(worker, 0.01)

    def _train(self, job: _Job, member: int, worker: Worker, store: SteppedStore) -> None:
        assert job.incarnation is not None
        start = 0 if job.chosen is None else job.chosen.step
        for round in range(self.scenario.rounds):
            attempt = attempt_name(job.incarnation, round)
            step = start + 10 * (round + 1)
            try:
                self._save(job, member, worker, store, step, attempt)
            except Fenced:
                job.fenced = True
            except (CheckpointError, OSError) as error:
                if self.scenario.kind == "calm":
                    self._fail(f"calm: {worker.name} could not save although nothing was wrong: {error}")

    def _save(
        self, job: _Job, member: int, worker: Worker, store: SteppedStore, step: int, attempt: str
    ) -> None:
        assert job.incarnation is not None
        before = sum(self.happened.values())
        directory = attempt_directory(step, attempt)
        tensors = tensors_of(attempt)
        share = shares_of(tensors, range(job.members))[member]
        position = {"epoch": 0, "phase": "train", "batch": step, "step": step}
        local, state = local_of(attempt, member), state_of(attempt, member)
        writer.write_part(store, directory, member, writer.WorkerShare(share, local, state, position))
        times: dict[str, Any] = {
            "clock": lambda: self.scheduler.now,
            "wait": lambda seconds: self.scheduler.wait(worker, seconds),
        }
        if member >= self.scenario.committers:
            manifest = committing.wait_for_commit(store, directory, 1.0, **times)
            if manifest is None:
                raise CheckpointError(f"nobody has committed {directory}")
        else:
            plan = committing.Attempt(
                step=step,
                name=attempt,
                position=position,
                kind="periodic",
                members=job.members,
                writers=tuple(range(job.members)),
                values=values_of(tensors),
            )
            patience = committing.Patience(1.0, **times)
            manifest = committing.commit(store, plan, patience, now=times["clock"])
        self.commits += 1
        self.checker.told(worker, directory, repr(manifest))
        if member < self.scenario.committers and not self._faulty(before):
            self.checker.committed(worker, directory)
        if member == 0:
            if job.tidying is None:
                job.tidying = tidying.Tidying(store, self.retention, job.incarnation)
            job.tidying.changed(directory)
            list(job.tidying.tidy())

    def _reading(self, worker: Worker, store: SteppedStore) -> None:
        for _ in range(6):
            restore = self.checker.restore_begins()
            chosen, told = self._restore(store, finding.newest_first(store))
            self.checker.restore_ends(worker, restore, chosen and chosen.directory, told, hindered=False)

    def _audit(self, worker: Worker, store: SteppedStore) -> None:
        """Whatever has happened: one who starts now gets the newest whole checkpoint."""
        restore = self.checker.restore_begins()
        chosen, told = self._restore(store, finding.newest_first(store))
        if chosen is not None and (problem := problem_of(self.place.read, chosen.directory)) is not None:
            self._fail(f"restore: {chosen.directory} was restored, and is broken: {problem}")
        self.checker.restore_ends(worker, restore, chosen and chosen.directory, told, hindered=False)


def campaign(
    seeds: Iterable[int], place: Callable[[int], AbstractContextManager[Place]] | None = None
) -> Result:
    """Runs many schedules, each at a place of its own; ends with the first violation."""
    total = Result(None, 0, 0, 0, Counter())
    for seed in seeds:
        with nullcontext(Memory()) if place is None else place(seed) as where:
            result = run(seed, where)
        total.steps += result.steps
        total.commits += result.commits
        total.exceptions += result.exceptions
        total.happened.update(result.happened)
        if result.failed is not None:
            total.failed = result.failed
            break
    return total
