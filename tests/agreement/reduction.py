"""Which steps of a worker may be run before all others, so that an exploration need not try every order of them.

A partial-order reduction: such steps commute with every step of another worker that could come before them, now or
later. Nothing that another worker does takes them away, and what comes of it is the same before them and after them. So
only the orders that begin with them are explored. A test compares the endings with those of all orders.

Where the leader may die, "the same" means the same ending. A worker that has not taken a plan by then loses
coordination, and ends without agreement whatever it has heard, answered or held for before.
"""

from __future__ import annotations

from keras_preempt.agreement.alignment import State
from tests.agreement.alignment_cluster import Cluster, Facts, Main, Round, Step, Watch, Worker, thawed

_STILL = (Main.HELD, Main.RAISED)
"""Where a main thread does nothing before its watcher does."""


class Reduction:
    """The steps of `cluster` that commute; none unless it is `reduced`."""

    def __init__(self, cluster: Cluster) -> None:
        members = range(cluster.workers)
        # Never those of the worker that may be gone at any moment, until it is.
        able = {"": members, "worker": members[:-1], "raise": members[:-1], "leader": members[1:]}
        self._members = able[cluster.death] if cluster.reduced else range(0)
        self._reduced = cluster.reduced
        self._leader_dies = cluster.death == "leader"
        # No round is ever aborted.
        self._certain = not cluster.death and cluster.patience == "death"

    def first(
        self,
        i: int,
        worker: Worker,
        current: Round,
        facts: int,
        others: list[Step],
        watcher: list[Step],
        main: list[Step],
    ) -> list[Step]:
        """The steps of worker `i` that may be run before all others; empty if there are none.

        Args:
            i: The worker's index.
            worker: The worker.
            current: The round that it is in.
            facts: About the other workers.
            others: What it can do in its listener and its countdown.
            watcher: What it can do in its watcher thread.
            main: What it can do in its main thread.
        """
        if i not in self._members and not (self._reduced and worker.main is Main.RAISED):
            return []
        if facts & Facts.SILENT:
            return others + main  # No one reads or writes a key any more: each ends by itself.
        planned = current.plan is not None and current.plan.abort is None
        match thawed(worker.member).state:
            case State.PLANNED | State.ACTING if main:
                return others + main  # Its watcher is idle, its plan fixed: nobody reads what it writes.
            case State.ANSWERED if worker.watch is Watch.SEEN and (main or worker.main in _STILL):
                return others + watcher + main  # Until it answers, nobody reads what it writes.
            case State.ANSWERED if worker.watch is Watch.READ:
                return watcher  # Only the caller looks at an answer, and it waits for all of them.
            case State.ANSWERED if self._leader_dies:
                return []  # Whether it takes the plan before that or after it makes the difference.
            case State.ANSWERED if worker.watch is Watch.PUBLISHED and (self._certain or planned):
                return watcher or main
            case _:
                return []
