"""What can happen to a custom loop of one process, one loop after the other, under either class of handler.

Usage: ``handler_local.py FOLDER ours|tensorflow [but] CASE...``. Writes ``FOLDER/0.json``: for each case, or for all
but those, what came of its loops, and what the case noted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_preempt.testing import FakeMetadata
from tests.cluster.handled_loop import STEPS, Cases, Loop, sigterm

FOLDER, KIND, NAMES = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
RETURNS = {"exit_fn": lambda: sys.exit(9)}
case = Cases()


def saved_step(loop: Loop) -> int | None:
    """The step in the latest checkpoint."""
    latest = tf.train.latest_checkpoint(str(loop.directory))
    if latest is None:
        return None
    return int(tf.train.load_checkpoint(latest).get_tensor("step/.ATTRIBUTES/VARIABLE_VALUE"))


@case
def undisturbed(loop: Loop, notes: dict[str, Any]) -> None:
    loop.train()


@case
def in_a_step(loop: Loop, notes: dict[str, Any]) -> None:
    loop.train({3: sigterm}, config=RETURNS)
    loop.train()


@case
def called_before_each_step(loop: Loop, notes: dict[str, Any]) -> None:
    loop.train({3: sigterm}, config=RETURNS, counted="before")
    loop.train(counted="before")


@case
def called_after_each_step(loop: Loop, notes: dict[str, Any]) -> None:
    loop.train({3: sigterm}, config=RETURNS, counted="after")
    loop.train(counted="after")


@case
def in_the_last_step(loop: Loop, notes: dict[str, Any]) -> None:
    loop.train({STEPS - 1: sigterm}, config=RETURNS)
    notes["saved"] = saved_step(loop)


@case
def training_ends_within_the_grace(loop: Loop, notes: dict[str, Any]) -> None:
    loop.train({3: sigterm}, config={"grace_period": 3600.0, **RETURNS})
    notes["saved"] = saved_step(loop)


@case
def saving_takes_long(loop: Loop, notes: dict[str, Any]) -> None:
    notes["grace"] = 7.5
    config = {"grace_period": notes["grace"], "save_fn": lambda: time.sleep(1.2), **RETURNS}
    loop.train({3: _noted(notes)}, steps=10_000, config=config, step_seconds=0.05)


@case
def resumed_after_many_steps(loop: Loop, notes: dict[str, Any]) -> None:
    """As a job that has run for long and goes on from its checkpoint: the steps before it count for nothing now."""
    done = 10_000
    checkpoint = tf.train.Checkpoint(checkpointed_runs=tf.Variable(done, dtype=tf.int64))
    checkpoint.step = tf.Variable(done, dtype=tf.int64)
    tf.train.CheckpointManager(checkpoint, str(loop.directory), 1).save()
    notes["grace"] = 10.0
    config = {"grace_period": notes["grace"], **RETURNS}
    loop.train({done + 3: _noted(notes)}, steps=2 * done, config=config, step_seconds=0.4)


def _noted(notes: dict[str, Any]) -> Callable[[], None]:
    def notify() -> None:
        notes["sent"] = time.time()
        sigterm()

    return notify


@case
def the_watcher_fails_once(loop: Loop, notes: dict[str, Any]) -> None:
    asked: list[int] = []

    def watcher() -> bool:
        asked.append(1)
        if len(asked) == 1:
            raise ConnectionError("the metadata server has hiccups")
        return True

    threading.excepthook = lambda arguments: None  # TensorFlow's thread dies of it.
    config = {"termination_watcher_fn": watcher, **RETURNS}
    loop.train(steps=40, config=config, step_seconds=0.1)


@case
def the_watcher_sees_nothing(loop: Loop, notes: dict[str, Any]) -> None:
    """It is what there is beside the signal, not in its place."""
    loop.train({3: sigterm}, config={"termination_watcher_fn": lambda: False, **RETURNS})


@case
def a_step_fails(loop: Loop, notes: dict[str, Any]) -> None:
    handler = loop.handler_class(None, tf.train.Checkpoint(step=tf.Variable(0)), str(loop.directory))

    @tf.function
    def step(number: Any) -> Any:
        tf.debugging.assert_less(number, 3)
        return number

    notes["raised_by"] = []
    for number in range(5):
        try:
            handler.run(step, tf.constant(number))
        except tf.errors.InvalidArgumentError:
            notes["raised_by"].append(number)
    del handler


@case
def five_seconds_of_grace(loop: Loop, notes: dict[str, Any]) -> None:
    notes["grace"] = 5.0
    config = {"grace_period": notes["grace"], **RETURNS}
    loop.train({60: _noted(notes)}, steps=10_000, config=config, step_seconds=0.02)


@case
def twice_in_one_process(loop: Loop, notes: dict[str, Any]) -> None:
    """The same checkpoint object, as in a program that makes a handler in each of its phases."""
    checkpoint = tf.train.Checkpoint(step=tf.Variable(0))
    runs = []
    for _ in range(2):
        handler = loop.handler_class(None, checkpoint, str(loop.directory), loop.config_class(**RETURNS))
        try:
            for number in range(5):
                handler.run(sigterm if number == 1 else int)
        except SystemExit:
            runs.append(handler.total_run_calls)
        del handler
    notes["runs"] = runs


@case
def with_a_manager_that_saves_rarely(loop: Loop, notes: dict[str, Any]) -> None:
    step = tf.Variable(0)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(step=step), str(loop.directory), 2, step_counter=step, checkpoint_interval=1000
    )
    manager.save()
    handler = loop.handler_class(None, manager, termination_config=loop.config_class(**RETURNS))
    try:
        for number in range(6):
            handler.run(sigterm if number == 2 else int)
            step.assign_add(1)
    except SystemExit:
        notes["exited"] = int(step.numpy())
    notes["saved"] = saved_step(loop)


@case
def the_count_in_the_users_own_saves(loop: Loop, notes: dict[str, Any]) -> None:
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(), str(loop.directory), 2)
    handler = loop.handler_class(None, manager)
    for _ in range(5):
        handler.run(int)
    manager.save()
    del handler
    again = tf.train.CheckpointManager(tf.train.Checkpoint(), str(loop.directory), 2)
    notes["runs"] = loop.handler_class(None, again).total_run_calls


@case
def on_google_compute_engine_without_a_gpu(loop: Loop, notes: dict[str, Any]) -> None:
    """First Google announces maintenance in a minute, then somebody ends the process at once."""
    with FakeMetadata(["gce"]) as fake:
        os.environ.update(fake.environment)
        os.environ.pop("KERAS_PREEMPT_PLATFORM", None)
        actions = {
            3: lambda: fake.gce.maintenance("TERMINATE_ON_HOST_MAINTENANCE"),
            60: sigterm,
        }
        loop.train(actions, steps=80, config=RETURNS, step_seconds=0.05)
    os.environ["KERAS_PREEMPT_PLATFORM"] = "generic"


@contextlib.contextmanager
def on_azure() -> Iterator[FakeMetadata]:
    with FakeMetadata(["azure"]) as fake:
        os.environ.update(fake.environment)
        os.environ["KERAS_PREEMPT_PLATFORM"] = "azure"
        yield fake
    os.environ["KERAS_PREEMPT_PLATFORM"] = "generic"


def until_logged(text: str, action: Callable[[], object]) -> None:
    """Does that, and waits until a handler has logged the text; TensorFlow's never does."""
    logged = threading.Event()
    listener = logging.Handler()
    listener.emit = lambda record: logged.set() if text in record.getMessage() else None  # type: ignore[method-assign]
    logging.getLogger("keras_preempt").addHandler(listener)
    action()
    logged.wait(30 if KIND == "ours" else 3)
    logging.getLogger("keras_preempt").removeHandler(listener)


@case
def an_earlier_deadline_in_the_countdown(loop: Loop, notes: dict[str, Any]) -> None:
    """Somebody asks for the machine in an hour, and then the cloud takes it in some seconds."""
    with on_azure() as fake:
        actions = {
            3: sigterm,
            20: lambda: fake.azure.schedule("Preempt", not_before=time.time() + 7),
        }
        config = {"grace_period": 3600.0, **RETURNS}
        loop.train(actions, steps=2000, config=config, step_seconds=0.02)


@case
def a_notice_that_is_withdrawn(loop: Loop, notes: dict[str, Any]) -> None:
    with on_azure() as fake:
        event: list[str] = []

        def announce() -> None:
            event.append(fake.azure.schedule("Terminate", not_before=time.time() + 3600))

        actions = {
            3: lambda: until_logged("is about to be ended", announce),
            5: lambda: until_logged("was withdrawn", lambda: fake.azure.cancel(event[0])),
        }
        loop.train(actions, config=RETURNS)
    notes["saved"] = saved_step(loop)


case.run(FOLDER, KIND, NAMES)
