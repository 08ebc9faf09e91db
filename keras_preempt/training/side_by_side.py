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
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras

from keras_preempt.backend.place import Place
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import CorruptCheckpoint, NotFound
from keras_preempt.checkpoint.layout import INCARNATIONS, parse_incarnation
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.process import environment, this_process
from keras_preempt.training.handshake import StartError

logger = logging.getLogger("keras_preempt")

TOGETHER = 600.0
"""Seconds between two workers' starts that count as one start of their job, where it cannot be seen whether one of
them still lives: on another machine."""

_CLAIMS = 32
"""How many of the newest claims are looked at: each takes one read."""


_OVER_ALL = "set a keras.distribution.DataParallel() or ModelParallel over keras.distribution.list_devices()"


@dataclass(frozen=True)
class Named:
    """How a process knows of the others: `by` whom, with a verb, or as a noun, the `source`.

    `to_join` says how a script has the workers train one model, `number` what is different in each worker.
    """

    by: str
    source: str
    to_join: str
    number: str


_BY_TENSORFLOW = Named(
    f"{environment.TF_CONFIG} names",
    environment.TF_CONFIG,
    "make and compile it under tf.distribute.MultiWorkerMirroredStrategy",
    f"the task's index of {environment.TF_CONFIG}",
)
_BY_KERAS = Named(
    f"{environment.KERAS_PROCESSES} names",
    environment.KERAS_PROCESSES,
    f"call keras.distribution.initialize() and {_OVER_ALL} before it is made",
    environment.KERAS_PROCESS,
)
_BY_JAX = Named(
    "jax.distributed has connected",
    "the job of jax.distributed",
    f"{_OVER_ALL} before it is made",
    "jax.process_index()",
)


class SideBySide(StartError):
    """Another worker of the cluster trains a model of its own in the same directory."""


@dataclass(frozen=True)
class Alone:
    """A worker of a cluster that trains alone.

    Attributes:
        task: Which one, such as "worker 1".
        members: How many training workers there are.
        cluster: Tells this cluster from others.
        strategy: What its model was made under, in words.
        named: How it knows of the others.
    """

    task: str
    members: int
    cluster: str
    strategy: str
    named: Named = _BY_TENSORFLOW

    def warn(self) -> None:
        """Logs that this worker trains alone, and what to do about it."""
        logger.warning(
            "%s %d workers, and this one, %s, trains a model of its own, since that was made under %s. To train one "
            "model on all of them, %s. If each shall train its own, give each its own directory, with %s in its name.",
            self.named.by,
            self.members,
            self.task,
            self.strategy,
            self.named.to_join,
            self.named.number,
        )

    def claim(self) -> Mapping[str, Any]:
        """Returns what the other workers have to know, as JSON to be stored with the claim of this start."""
        return {
            incarnations.ALONE: {"task": self.task, "cluster": self.cluster, "process": this_process.name()}
        }

    def refuse_company(self, store: Store, incarnation: int) -> None:
        """Makes sure that no other worker of the cluster trains in the directory. Called after this start was claimed.

        Of two that begin at once, the one whose claim came second finds the other.

        Raises:
            SideBySide: One does.
        """
        numbers = [parse_incarnation(name) for name in store.children(INCARNATIONS)]
        earlier = sorted((n for n in numbers if n is not None and n < incarnation), reverse=True)
        for number in earlier[:_CLAIMS]:
            try:
                claim = incarnations.read(store, number)
            except (NotFound, CorruptCheckpoint):  # Withdrawn by a start that failed; or unreadable.
                continue
            other = claim.get(incarnations.ALONE)
            if not isinstance(other, dict) or other.get("cluster") != self.cluster:
                continue
            if other.get("task") != self.task and _lives(other, claim.get("claimed_at")):
                backend().leave_refused()
                raise SideBySide(
                    f"Expected one model on all {self.members} workers of {self.named.source}, or a directory for each "
                    f"worker. Received: a model of its own on {self.task}, made under {self.strategy}, in {store.url}, "
                    f"where {other.get('task')} has begun to train another one. For one model, {self.named.to_join}; "
                    f"or give each worker its own directory, with {self.named.number} in its name."
                )


def alone(strategy: object, place: Place) -> Alone | None:
    """Finds out whether this process is one of several training workers that each train alone.

    Returns None if it is not: it trains with the others; it is no training worker, but an evaluator, say; or its
    cluster works in another way, with parameter servers or with remote workers. On JAX, `strategy` is a distribution
    or None.
    """
    if place.members > 1 or place.workers or place.joins:
        return None
    return _alone_on_jax(strategy) if keras.backend.backend() == "jax" else _alone_on_tensorflow(strategy)


def _alone_on_jax(distribution: object) -> Alone | None:
    strategy = "no distribution" if distribution is None else type(distribution).__name__
    if (job := backend().job()) is not None:
        return Alone(f"process {job.process}", job.processes, _digest(job.name), strategy, _BY_JAX)
    try:
        members = int(os.environ.get(environment.KERAS_PROCESSES) or 1)
        index = int(os.environ.get(environment.KERAS_PROCESS) or 0)
    except ValueError:  # What keras.distribution.initialize would not take either.
        return None
    if members < 2:
        return None
    cluster = os.environ.get(environment.KERAS_ADDRESSES) or ""
    return Alone(f"process {index}", members, _digest(cluster), strategy, _BY_KERAS)


def _alone_on_tensorflow(strategy: object) -> Alone | None:
    try:
        told = json.loads(os.environ.get(environment.TF_CONFIG) or "{}")
        cluster, task = dict(told["cluster"]), dict(told["task"])
        members = sum(len(cluster.get(job, ())) for job in ("chief", "worker"))
        job, index = task["type"], int(task.get("index", 0))
    except (ValueError, TypeError, KeyError):  # No cluster, or a text that only a strategy can read.
        return None
    if members < 2 or job not in ("chief", "worker") or "ps" in cluster:
        return None
    digest = _digest(json.dumps(cluster, sort_keys=True))
    named = type(strategy).__name__
    # A model that is made under none has TensorFlow's default strategy, whose class is not public.
    return Alone(f"{job} {index}", members, digest, "no strategy" if named.startswith("_") else named)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _lives(other: Mapping[str, Any], claimed_at: object) -> bool:
    alive = this_process.is_alive(other.get("process"))
    if alive is None:
        return isinstance(claimed_at, (int, float)) and abs(time.time() - claimed_at) < TOGETHER
    return alive
