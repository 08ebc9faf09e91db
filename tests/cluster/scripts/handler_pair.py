"""What can happen to a custom loop of two workers, one loop after the other.

Usage: ``handler_pair.py FOLDER ours|tensorflow [but] CASE...``. Writes ``FOLDER/<worker>.json``: for each case, or for
all but those, what came of its loops, and what the case noted.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

FOLDER, KIND, NAMES = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
STRATEGY: Any = tf.distribute.MultiWorkerMirroredStrategy()

from tests.cluster.handled_loop import MEMBER, STEPS, Cases, Loop, on  # noqa: E402
from tests.cluster.handled_loop import sigterm as sigterm_at_once  # noqa: E402

LEAVES = {"exit_fn": lambda: sys.exit(9)}
case = Cases()


def sigterm() -> None:
    """In time for all workers to hear of it within the same step."""
    sigterm_at_once()
    time.sleep(0.2)


@case
def undisturbed(loop: Loop, notes: dict[str, Any]) -> None:
    loop.train()


@case
def one_notice(loop: Loop, notes: dict[str, Any]) -> None:
    loop.train({3: on(1, sigterm)}, config=LEAVES)
    loop.train()


@case
def exits(loop: Loop, notes: dict[str, Any]) -> None:
    loop.train({3: on(0, sigterm)}, config={"exit_code": 9})
    loop.train({6: on(1, sigterm)}, config={"exit_fn": lambda: None})
    loop.train()


@case
def two_preemptions_in_one_process(loop: Loop, notes: dict[str, Any]) -> None:
    loop.train({2: on(1, sigterm)}, config=LEAVES)
    loop.train({6: on(0, sigterm)}, config=LEAVES)
    loop.train()


@case
def two_notices(loop: Loop, notes: dict[str, Any]) -> None:
    late = on(0, lambda: threading.Timer(0.1, sigterm).start())
    loop.train({3: on(1, sigterm), 4: late}, config=LEAVES, step_seconds=0.2)
    loop.train()


@case
def two_notices_with_grace(loop: Loop, notes: dict[str, Any]) -> None:
    grace = {"grace_period": 6.0, **LEAVES}
    notes["steps"] = 10_000
    loop.train({3: on(1, sigterm), 9: on(0, sigterm)}, steps=10_000, config=grace, step_seconds=0.05)


@case
def save_arguments(loop: Loop, notes: dict[str, Any]) -> None:
    loop.train(
        {4: on(0, sigterm)}, config=LEAVES, save_arguments=lambda step: {"checkpoint_number": 100 + step}
    )
    loop.train(save_arguments=lambda step: {"checkpoint_number": 100 + step})


@case
def save_fn_that_does_nothing(loop: Loop, notes: dict[str, Any]) -> None:
    given: list[dict[str, Any]] = []
    config = {"save_fn": lambda **kwargs: given.append(kwargs), **LEAVES}
    loop.train({2: on(1, sigterm)}, config=config, save_arguments=lambda step: {"number": step})
    notes["given"] = given


@case
def called_before_each_step(loop: Loop, notes: dict[str, Any]) -> None:
    loop.train({3: on(1, sigterm)}, config=LEAVES, counted="before")
    loop.train(counted="before")


@case
def called_after_each_step(loop: Loop, notes: dict[str, Any]) -> None:
    loop.train({3: on(1, sigterm)}, config=LEAVES, counted="after")
    loop.train(counted="after")


@case
def in_the_last_step(loop: Loop, notes: dict[str, Any]) -> None:
    loop.train({STEPS - 1: on(1, sigterm)}, config=LEAVES)
    loop.train()


@case
def out_of_step(loop: Loop, notes: dict[str, Any]) -> None:
    """Worker 0 is far ahead when worker 1 gets the notice."""
    seconds = 0.05 if MEMBER == 0 else 0.2
    loop.train({3: on(1, sigterm)}, steps=30, config=LEAVES, step_seconds=seconds, lockstep=False)


@case
def deleted_by_one(loop: Loop, notes: dict[str, Any]) -> None:
    def delete() -> None:
        loop.handler = None

    loop.train({2: on(1, delete)}, lockstep=False)


@case
def dead_peer(loop: Loop, notes: dict[str, Any]) -> None:
    """Worker 1 is killed in a step that worker 0 does not wait in; then worker 0 gets a notice."""
    if KIND == "ours":
        from keras_preempt.agreement import delegate

        delegate.ALIGNMENT_TIMEOUT = 2.0

    def die() -> None:
        if MEMBER:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.5)

    loop.train({3: die, 4: sigterm}, lockstep=False)


@case
def resource_exhausted(loop: Loop, notes: dict[str, Any]) -> None:
    """Worker 1 runs out of memory, as TensorFlow says it; nothing more can be run after it in this process."""

    def fail() -> None:
        notes["failed_at"] = time.time()
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating a tensor")

    loop.train({3: on(1, fail)})


case.run(FOLDER, KIND, NAMES, STRATEGY)
if NAMES == ["dead_peer"]:
    os._exit(0)  # TensorFlow's own goodbye would wait for the heartbeat of the dead.
