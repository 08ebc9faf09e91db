"""Runs every interleaving of a small cluster through `keras_preempt.agreement.member.Member`, the rules of a fit.

What one worker can do is in `model.py`. A cluster's state is one integer: side by side, the number of the keys as they
are and of each worker as it is. What one worker can do depends only on its own number, that of the keys and four facts
about the others, so it is worked out once per such combination, as what each step adds to the state.
No step can be undone (a counter goes up, a key appears, a thread ends), so there are no cycles: if no state
without a next step leaves a worker waiting, every execution ends.

`Cluster.reduced` leaves out orders that cannot differ (a partial-order reduction). A step is then run at
once, alone, where it commutes with every step that could come before it: nothing reads what it writes, and
it takes no other step away. `Model.steps` says which; a test compares both where both are cheap.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from keras_preempt.agreement.messages import ProtocolError
from tests.agreement.alignment_cluster import Cluster, Facts, Keys, Main, Violation, Worker, thawed
from tests.agreement.model import Model

_BITS = 32
_MASK = (1 << _BITS) - 1

# The lowest bits of the keys' number are free for facts; those of a worker's are what the others' facts ask of it.
_FACTS, _SEEN = 4, 8
_DEAD, _GONE, _ENDED, _CAME = 1, 2, 4, 8


@dataclass
class Found:
    """What an exploration came across."""

    states: int = 0
    endings: dict[tuple[str, ...], int] = field(default_factory=dict)
    rounds: int = 0


@dataclass
class Moves:
    """What one worker can do next; each step as what it adds to the state.

    Attributes:
        steps: Those after which the worker is in the same round.
        into_next: Those that end the round for it.
        labels: What to call each.
        at_once: Whether they may be run before all steps of the others.
    """

    steps: list[int]
    into_next: list[int]
    labels: dict[int, str]
    at_once: bool


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
        self._rounds: list[int] = []
        self._keys: list[Keys] = []
        self._key_ids: dict[Keys, int] = {}
        self._shifts = range(_BITS, (1 + cluster.workers) * _BITS, _BITS)
        self._own = [_MASK << shift | _MASK for shift in self._shifts]
        self._seen = sum((1 << _SEEN) - 1 << shift for shift in self._shifts)
        self._known: list[dict[int, Moves]] = [{} for _ in self._shifts]
        self._facts: dict[int, list[int]] = {}
        self._trimmed: dict[tuple[int, int], int] = {}
        self.start = self._key_id(())
        for i, shift in enumerate(self._shifts):
            self.start |= self._worker_id(self.model.start(i)) << shift

    def _worker_id(self, worker: Worker) -> int:
        found = self._worker_ids.get(worker)
        if found is None:
            main, entered = worker.main, worker.entered
            flags = (main is Main.DEAD) * _DEAD | (main >= Main.ALONE) * _GONE | (main >= Main.LEFT) * _ENDED
            seen = (entered - (Main.RUNNING < main <= Main.LEFT)) * _CAME | flags
            found = self._worker_ids[worker] = len(self._workers) << _SEEN | seen
            self._workers.append(worker)
            self._rounds.append(99 if worker.member is None else thawed(worker.member).round)
        return found

    def _key_id(self, keys: Keys) -> int:
        found = self._key_ids.get(keys)
        if found is None:
            found = self._key_ids[keys] = len(self._keys) << _FACTS
            self._keys.append(keys)
        return found

    def explore(self) -> Found:
        found = Found()
        seen = {self.start}
        frontier = seen
        while frontier:
            following: set[int] = set()
            for state in frontier:
                try:
                    everyone = self._moves(state)
                    if not everyone:
                        self._check_ending(state, found)
                except (Violation, ProtocolError) as error:
                    raise Violation(f"{error}\n{self._path(state)}") from error
                for moves in everyone:
                    following.update([state + step for step in moves.steps])
                    for step in moves.into_next:
                        following.add(self._trim(state + step))
            frontier = following - seen
            seen |= frontier
        found.states = len(seen)
        found.rounds = 1 + max((keys[-1].number for keys in self._keys if keys), default=-1)
        return found

    def _path(self, goal: int) -> str:
        """The shortest way to `goal`, walked again: to remember every state's parent would cost memory."""
        came: dict[int, tuple[str, int]] = {}
        frontier = [self.start]
        while goal not in came and goal != self.start:
            following = []
            for state in frontier:
                for moves in self._moves(state):
                    for step, label in moves.labels.items():
                        successor = self._trim(state + step) if step in moves.into_next else state + step
                        if successor not in came:
                            came[successor] = (label, state)
                            following.append(successor)
            frontier = following
        labels: list[str] = []
        while goal != self.start:
            label, goal = came[goal]
            labels.append(label)
        return "after: " + "; ".join(reversed(labels))

    def _moves(self, state: int) -> list[Moves]:
        """What each worker can do in `state`, of those that can do something."""
        seen = state & self._seen
        facts = self._facts.get(seen)
        if facts is None:
            views = [seen >> shift & (1 << _SEEN) - 1 for shift in self._shifts]
            facts = self._facts[seen] = [self._facts_for(mine, views) for mine in views]
        everyone: list[Moves] = []
        for i, known in enumerate(self._known):
            combination = state & self._own[i] | facts[i]
            moves = known.get(combination)
            if moves is None:
                moves = known[combination] = self._moves_of(i, state, facts[i])
            if moves.at_once:
                return [moves]
            if moves.labels:
                everyone.append(moves)
        return everyone

    def _facts_for(self, mine: int, views: list[int]) -> int:
        cluster, came = self.cluster, mine // _CAME
        anyone_gone = any(view & _GONE for view in views)
        facts = 0
        if anyone_gone or cluster.patience == "none":
            facts |= Facts.IMPATIENT
        if cluster.death == "leader" and views[0] & _DEAD:
            facts |= Facts.SILENT
        if not cluster.lockstep or came == 0 or all(view // _CAME >= came for view in views):
            facts |= Facts.COMPLETE
        elif anyone_gone and any(view & _ENDED and view // _CAME < came for view in views):
            facts |= Facts.BROKEN
        return facts

    def _moves_of(self, i: int, state: int, facts: int) -> Moves:
        key_id, worker_id = state & _MASK, state >> self._shifts[i] & _MASK
        worker, keys, cluster = self._workers[worker_id >> _SEEN], self._keys[key_id >> _FACTS], self.cluster
        moves = Moves([], [], {}, at_once=False)
        if worker.member is None:
            return moves
        steps, moves.at_once = self.model.steps(i, worker, keys, facts)
        victim = {"worker": cluster.workers - 1, "leader": 0}.get(cluster.death)
        if i == victim and worker.main < Main.LEFT and not moves.at_once:
            steps = [*steps, (f"{i} dies", self.model.end(worker, Main.DEAD), keys)]
        for label, after, then in steps:
            new = self._worker_id(after)
            step = (new - worker_id << self._shifts[i]) + self._key_id(then) - key_id
            same_round = self._rounds[new >> _SEEN] == self._rounds[worker_id >> _SEEN]
            (moves.steps if same_round else moves.into_next).append(step)
            moves.labels[step] = label
        return moves

    def _trim(self, state: int) -> int:
        """Forget rounds that every worker has left: nobody looks at their keys again."""
        oldest = min([self._rounds[(state >> shift & _MASK) >> _SEEN] for shift in self._shifts])
        key_id = state & _MASK
        found = self._trimmed.get((key_id, oldest))
        if found is None:
            kept = tuple(entry for entry in self._keys[key_id >> _FACTS] if entry.number >= oldest)
            found = self._trimmed[key_id, oldest] = self._key_id(kept) - key_id
        return state + found

    # What must hold where nothing can happen any more.

    def _check_ending(self, state: int, found: Found) -> None:
        workers = [self._workers[(state >> shift & _MASK) >> _SEEN] for shift in self._shifts]
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
