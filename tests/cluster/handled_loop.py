"""A custom training loop under a handler, of this package or TensorFlow's, and whatever is to happen in its steps.

For scripts: one process runs loop after loop, as processes that are started again do.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_preempt import Preempted
from keras_preempt import PreemptionCheckpointHandler as Ours
from keras_preempt import TerminationConfig as OurConfig
from tests.cluster.left_behind import is_given_back

STEPS = 8
CLASSES = {
    "ours": (Ours, OurConfig),
    "tensorflow": (
        tf.distribute.experimental.PreemptionCheckpointHandler,
        tf.distribute.experimental.TerminationConfig,
    ),
}
MEMBER = int(json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"])

Actions = Mapping[int, Callable[[], object]]
"""What to do in a step, by its number from 0: when it has begun, before it computes."""


def sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def on(member: int, function: Callable[[], object]) -> Callable[[], object]:
    """The function on that worker, nothing on the others."""
    return function if member == MEMBER else lambda: None


class Loop:
    """One run in one directory.

    Args:
        directory: Of the checkpoints.
        kind: Whose handler: a key of `CLASSES`.
        strategy: Of several workers, or None.
    """

    def __init__(self, directory: Path, kind: str, strategy: Any = None) -> None:
        self.directory = directory
        self.handler_class, self.config_class = CLASSES[kind]
        self.strategy = strategy or tf.distribute.get_strategy()
        self.outcomes: list[dict[str, Any]] = []
        self.handler: Any = None

    def train(
        self,
        actions: Actions | None = None,
        *,
        steps: int = STEPS,
        config: Mapping[str, Any] | None = None,
        step_seconds: float = 0.0,
        lockstep: bool = True,
        save_arguments: Callable[[int], Mapping[str, Any]] | None = None,
        counted: str | None = None,
    ) -> dict[str, Any]:
        """Trains as a process that is started again does.

        Args:
            actions: What is to happen.
            steps: How many steps training has.
            config: Arguments of the class TerminationConfig.
            step_seconds: How much longer each step takes.
            lockstep: Whether the workers wait for each other in each step.
            save_arguments: Uses save_checkpoint_if_preempted after each step, with these, in place of run.
            counted: "before" or "after": uses save_checkpoint_if_preempted before or after each step, and lets the
                handler's count say which steps are left, as TensorFlow's own tests do.
        """
        with self.strategy.scope():
            state = tf.Variable(1.0, dtype=tf.float64)
            # Read by a collective when it is saved, as the metrics and moving averages of Keras are.
            sums = tf.Variable(
                0.0,
                dtype=tf.float64,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
            step = tf.Variable(0, dtype=tf.int64)
        checkpoint = tf.train.Checkpoint(state=state, sums=sums, step=step)

        @tf.function
        def update() -> Any:
            def in_replica() -> None:
                sums.assign_add(tf.cast(step + MEMBER, tf.float64))
                if lockstep:
                    context = tf.distribute.get_replica_context()
                    total = context.all_reduce("SUM", tf.cast(step * 3 + 1 + MEMBER, tf.float64))
                    state.assign(state * 0.7 + total)

            self.strategy.run(in_replica)

        ran: list[int] = []

        def one() -> None:
            number = int(step.numpy())
            (actions or {}).get(number, lambda: None)()
            if step_seconds:
                time.sleep(step_seconds)
            update()
            ran.append(number)

        ended = "finished"
        started_at = runs_at_start = -1

        def save() -> None:
            self.handler.save_checkpoint_if_preempted(checkpoint_number=int(step.numpy()))

        try:
            termination = self.config_class(**config) if config is not None else None
            resolver = getattr(self.strategy, "cluster_resolver", None)
            self.handler = self.handler_class(
                resolver, checkpoint, str(self.directory), termination_config=termination
            )
            started_at = int(step.numpy())
            runs_at_start = self.handler.total_run_calls if self.handler is not None else -1
            for _ in range(runs_at_start, steps) if counted else ():
                if counted == "before":
                    save()
                one()
                step.assign_add(1)
                if counted == "after":
                    save()
            while not counted and int(step.numpy()) < steps:
                if self.handler is None:
                    one()
                    step.assign_add(1)
                elif save_arguments is None:
                    self.handler.run(one)
                    step.assign_add(1)
                else:
                    one()
                    step.assign_add(1)
                    self.handler.save_checkpoint_if_preempted(**save_arguments(int(step.numpy())))
        except Preempted:
            ended = "Preempted"
        except SystemExit as error:
            ended = f"SystemExit {error.code}"
        except tf.errors.OpError as error:
            ended = f"{type(error).__name__} {error.message}"
        runs = self.handler.total_run_calls if self.handler is not None else None
        self.handler = None  # Deletes it.
        outcome = {
            "ended": ended,
            "left": time.time(),
            "started_at": started_at,
            "runs_at_start": runs_at_start,
            "ran": ran,
            "runs": runs,
            "value": float(state.numpy()),
            "files": sorted(path.name for path in self.directory.glob("*")),
            "beside": sorted(path.name for path in self.directory.parent.glob("workertemp*")),
        }
        self.outcomes.append(outcome)
        return outcome


def eight_runs(directory: Path, after_four: Callable[[], object], **options: Any) -> None:
    """A loop that does nothing but eight runs of one step under our handler, and that after the fourth."""
    value = tf.Variable(0)
    with Ours(None, tf.train.Checkpoint(value=value), directory, **options) as handler:
        for step in range(8):
            handler.run(value.assign_add, 1)
            if step == 3:
                after_four()


class Cases:
    """What can happen to loops, as functions of a loop and of what is noted; a decorator that adds one."""

    def __init__(self) -> None:
        self._known: dict[str, Callable[[Loop, dict[str, Any]], None]] = {}

    def __call__(self, function: Callable[[Loop, dict[str, Any]], None]) -> None:
        self._known[function.__name__] = function

    def run(self, folder: Path, kind: str, names: Sequence[str], strategy: Any = None) -> None:
        """Writes to ``folder/<worker>.json`` what came of the loops of each case, and what it noted.

        Args:
            folder: That of the result and of all directories.
            kind: Whose handler: a key of `CLASSES`.
            names: The cases; after "but", those that are left out.
            strategy: Of several workers, or None.
        """
        if names[0] == "but":
            names = [name for name in self._known if name not in names]
        found: dict[str, Any] = {}
        for name in names:
            handler, threads = signal.getsignal(signal.SIGTERM), set(threading.enumerate())
            loop, notes, began = Loop(folder / name / "run", kind, strategy), dict[str, Any](), time.time()
            self._known[name](loop, notes)
            left = {thread.name for thread in set(threading.enumerate()) - threads}
            notes["threads"] = sorted(name for name in left if name.startswith("keras_preempt"))
            notes["handler"] = is_given_back(signal.SIGTERM, handler)
            found[name] = {"loops": loop.outcomes, "notes": notes}
            print(f"CASE {name}: {time.time() - began:.1f} s", flush=True)
        (folder / f"{MEMBER}.json").write_text(json.dumps(found, default=int))
