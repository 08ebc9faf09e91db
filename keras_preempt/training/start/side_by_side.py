"""Detects workers of one cluster that each train a model of their own in the same directory.

TensorFlow makes several processes train together only under a strategy for several workers, and JAX only once
`keras.distribution.initialize` was called and a distribution was set. Without it each of them trains alone, without any
message. That is right for a search or for folds, each in a directory of its own. In one
directory they take each other for a later start of the same run: one of them could never save again, or the second one
would continue from what the first one has left.

Who the others are is said by a variable of the environment, or by JAX itself in a job that it has joined, which it may
have found by other means, such as those of Slurm or of a TPU slice.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras_preempt.agreement.coordinator import Coordinator
from keras_preempt.backend.place import JobSource, Place
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import CorruptCheckpoint, NotFound
from keras_preempt.checkpoint.layout import INCARNATIONS, parse_incarnation
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.process import this_process
from keras_preempt.training.start.handshake import StartError

logger = logging.getLogger("keras_preempt")

TOGETHER = 600.0
"""Seconds between two workers' starts that count as one start of their job, where it cannot be seen whether one of
them still lives: on another machine."""

_CLAIMS = 32
"""How many of the newest claims are looked at: each takes one read."""


class SideBySide(StartError):
    """Another worker of the cluster trains a model of its own in the same directory."""


@dataclass(frozen=True)
class Alone:
    """A worker of a cluster that trains alone."""

    task: str  # Such as "worker 1".
    members: int  # How many training workers there are.
    cluster: str  # Tells this cluster from others.
    strategy: str  # What its model was made under, in words.
    job: JobSource  # How it knows of the others.

    def warn(self) -> None:
        logger.warning(
            "%s %d workers, and this one, %s, trains a model of its own, since that was made under %s. To train one "
            "model on all of them, %s. If each shall train its own, give each its own directory, with %s in its name.",
            self.job.by,
            self.members,
            self.task,
            self.strategy,
            self.job.to_join,
            self.job.number,
        )

    def claim(self) -> Mapping[str, Any]:
        """Returns what the other workers have to know, as JSON to be stored with the claim of this start."""
        return {
            incarnations.ALONE: {"task": self.task, "cluster": self.cluster, "process": this_process.name()}
        }

    def refuse_company(self, store: Store, incarnation: int) -> None:
        """Raises `SideBySide` if another worker of the cluster trains in the directory.

        Called after this start was claimed: of two that begin at once, the one whose claim came second finds the other.
        """
        numbers = [parse_incarnation(name) for name in store.children(INCARNATIONS)]
        earlier = sorted((n for n in numbers if n is not None and n < incarnation), reverse=True)
        for number in earlier[:_CLAIMS]:
            try:
                claim = incarnations.read_claim(store, number)
            except (NotFound, CorruptCheckpoint):  # Withdrawn by a start that failed; or unreadable.
                continue
            other = claim.get(incarnations.ALONE)
            if not isinstance(other, dict) or other.get("cluster") != self.cluster:
                continue
            if other.get("task") == self.task:
                continue
            alive, claimed_at = this_process.is_alive(other.get("process")), claim.get("claimed_at")
            if alive is None:
                alive = isinstance(claimed_at, (int, float)) and abs(time.time() - claimed_at) < TOGETHER
            if alive:
                backend().leave_refused()
                raise SideBySide(
                    f"Expected one model on all {self.members} workers of {self.job.source}, or a directory for each "
                    f"worker. Received: a model of its own on {self.task}, made under {self.strategy}, in {store.url}, "
                    f"where {other.get('task')} has begun to train another one. For one model, {self.job.to_join}; "
                    f"or give each worker its own directory, with {self.job.number} in its name."
                )


def alone(strategy: object, place: Place) -> Alone | None:
    """Returns what this process is if several training workers each train alone; else None.

    None also for an evaluator, and in clusters with parameter servers or remote workers. On JAX, `strategy` is a
    distribution or None.
    """
    if place.members > 1 or place.workers or place.joins:
        return None
    found = backend().neighbours(strategy)
    if found is None:
        return None
    digest = hashlib.sha256(found.job.encode()).hexdigest()[:16]
    return Alone(found.task, found.members, digest, found.strategy, found.source)


def join_loop(resolver: Any) -> tuple[Place, Coordinator]:
    """Finds this process among the workers of a custom loop, and warns if it trains alone.

    `resolver` is that of the strategy; None for that of the strategy in whose scope this is called. Raises ValueError
    if this process is no training worker or their steps cannot be aligned, and CoordinationLost without a service.
    """
    here, strategy = backend().place_of_loop(resolver)
    if strategy is not None and (worker := alone(strategy, here)) is not None:
        worker.warn()
    return here, backend().coordinator(here)
