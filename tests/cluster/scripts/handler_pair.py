"""What can happen to a custom loop of two workers, one loop after the other.

Usage: ``handler_pair.py FOLDER ours|tensorflow CASE...``. Writes ``FOLDER/<worker>.json``: for each case what came
of its loops, and what the case noted.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

FOLDER, KIND, NAMES = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
STRATEGY: Any = tf.distribute.MultiWorkerMirroredStrategy()

from tests.cluster.handled_loop import MEMBER, STEPS, Loop, on  # noqa
from tests.cluster.handled_loop import sigterm as sigterm_at_once  # noqa: E402
from tests.cluster.left_behind import is_given_back  # noqa: E402

LEAVES = {"exit_fn": lambda: sys.exit(9)}
CASES: dict[str, Callable[[Loop, dict[str, Any]], None]] = {}


def sigterm() -> None:
    """In time for all workers to hear of it within the same step."""
    sigterm_at_once()
    time.sleep(0.2)


def case(function: Callable[[Loop, dict[str, Any]], None]) -> Any:
    CASES[function.__name__] = function
    return function


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
    grace = {"grace_period": 8.0, **LEAVES}
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
        from keras_preempt.agreement import rounds

        rounds.ALIGNMENT_TIMEOUT = 2.0

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


def main() -> None:
    found: dict[str, Any] = {}
    for name in NAMES:
        handler, threads = signal.getsignal(signal.SIGTERM), set(threading.enumerate())
        loop, notes, began = Loop(FOLDER / name / "run", KIND, STRATEGY), {}, time.time()
        CASES[name](loop, notes)
        left = {thread.name for thread in set(threading.enumerate()) - threads}
        notes["threads"] = sorted(name for name in left if name.startswith("keras_preempt"))
        notes["handler"] = is_given_back(signal.SIGTERM, handler)
        found[name] = {"loops": loop.outcomes, "notes": notes}
        print(f"CASE {name}: {time.time() - began:.1f} s", flush=True)
    (FOLDER / f"{MEMBER}.json").write_text(json.dumps(found, default=int))


main()
