"""Runs every interleaving of a small cluster through `keras_preempt.agreement.member.Member`, the rules of a fit.

What one worker can do is in `model.py`. A cluster's state is a tuple of small integers, one
per worker plus one for the keys, each naming an interned value. What one worker can do depends only on its
own value, the keys and four facts about the others, so it is worked out once per such combination.
No step can be undone (a counter goes up, a key appears, a thread ends), so there are no cycles: if no state
without a next step leaves a worker waiting, every execution ends.

`Cluster.reduced` leaves out orders that cannot differ (a partial-order reduction). A step is then run at
once, alone, where it commutes with every step that could come before it: nothing reads what it writes, and
it takes no other step away. `Model.steps` says which; a test compares both where both are cheap.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from keras_preempt.agreement.alignment import ProtocolError
from tests.agreement.alignment_cluster import Cluster, Facts, Keys, Main, Violation, Worker, thawed
from tests.agreement.model import Model

# Plain integers: the flags' own arithmetic would take most of the time.
_COMPLETE, _BROKEN, _IMPATIENT, _SILENT = (int(fact) for fact in Facts)


@dataclass
class Found:
    """What an exploration came across."""

    states: int = 0
    endings: dict[tuple[str, ...], int] = field(default_factory=dict)
    rounds: int = 0


class Explorer:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.model = Model(cluster)
        self._agreed = [{"LEFT"}, {"FINISHED"}]
        if cluster.patience == "none":
            # A worker ends without agreement once all rounds for which it has asked at its end were aborted. It is the
            # end of all, then: a plan that others carry out would count on it.
            self._agreed.append({"ALONE"})
        self._workers: list[Worker] = []
        self._worker_ids: dict[Worker, int] = {}
        self._progress: list[int] = []
        self._gone: list[bool] = []
        self._ended: list[bool] = []
        self._over: list[bool] = []
        self._rounds: list[int] = []
        self._keys: list[Keys] = []
        self._key_ids: dict[Keys, int] = {}
        self._memo: dict[tuple[int, int, int, int], list[tuple[str, int, int]]] = {}
        self._at_once: set[tuple[int, int, int, int]] = set()
        self._trimmed: dict[tuple[int, int], int] = {}
        self.start = (
            *(self._worker_id(worker) for worker in map(self.model.start, range(cluster.workers))),
            self._key_id(()),
        )

    def _worker_id(self, worker: Worker) -> int:
        found = self._worker_ids.get(worker)
        if found is None:
            found = self._worker_ids[worker] = len(self._workers)
            self._workers.append(worker)
            self._progress.append(worker.entered - (Main.RUNNING < worker.main <= Main.LEFT))
            self._gone.append(worker.main >= Main.ALONE)
            self._ended.append(worker.main >= Main.LEFT)
            self._over.append(worker.member is None)
            self._rounds.append(99 if worker.member is None else thawed(worker.member).round)
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
            if self._over[local]:
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
                found, commutes = self.model.steps(i, self._workers[local], self._keys[keys], Facts(facts))
                steps = self._memo[memo] = [
                    (label, self._worker_id(worker), self._key_id(after)) for label, worker, after in found
                ]
                if commutes:
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
            dead = self._worker_id(self.model.end(self._workers[locals_[victim]], Main.DEAD))
            changed = (*locals_[:victim], dead, *locals_[victim + 1 :])
            key_id = self._trim(keys, min(self._rounds[other] for other in changed))
            successors.append((f"{victim} dies", (*changed, key_id)))
        return successors

    def _trim(self, key_id: int, oldest: int) -> int:
        """Forget rounds that every worker has left: nobody looks at their keys again."""
        found = self._trimmed.get((key_id, oldest))
        if found is None:
            kept = tuple(entry for entry in self._keys[key_id] if entry.number >= oldest)
            found = self._trimmed[key_id, oldest] = self._key_id(kept)
        return found

    # What must hold where nothing can happen any more.

    def _check_ending(self, state: tuple[int, ...], found: Found) -> None:
        workers = [self._workers[local] for local in state[:-1]]
        stuck = [i for i, worker in enumerate(workers) if worker.main < Main.LEFT]
        if stuck:
            raise Violation(f"workers {stuck} are stuck")
        names = tuple(worker.main.name for worker in workers)
        living = {name for name in names if name not in ("DEAD", "RAISED")}
        cluster = self.cluster
        if len({worker.entered for worker in workers if worker.main is Main.LEFT}) > 1:
            raise Violation(f"members left at different boundaries: {workers}")
        if cluster.death != "leader" and len(living) > 1:
            raise Violation(f"some act and some do not: {names}")
        if not cluster.death and set(names) not in self._agreed:
            raise Violation(f"not all act or all finish: {names}")
        found.endings[names] = found.endings.get(names, 0) + 1


def explore(cluster: Cluster) -> Found:
    """Explore every state of `cluster`. Raises `Violation` with the shortest path to the first bad one."""
    return Explorer(cluster).explore()
