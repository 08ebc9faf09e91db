"""What can come between a notice and the end of its grace period, one fit after the other on two workers.

Usage: ``grace_cases.py FOLDER [resume]``. Writes ``FOLDER/<worker>.json``: for each case what came of its fits, and
what the case noted. The last case uses up its grace period and ends the processes; with ``resume`` it is taken up
again, for ``FOLDER/<worker>.resumed.json``. Each worker has a metadata server of its own, so that each is told
something else.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_preempt.backend.tensorflow.multi_worker_fit import enable_multi_worker_fit
from keras_preempt.checkpoint import failpoints
from keras_preempt.testing import FakeMetadata
from tests.cluster.left_behind import is_given_back
from tests.cluster.noticed_fit import STEPS, Model, NoticedFit, sigterm

FOLDER = Path(sys.argv[1])
WORKER = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
EPOCHS = 3
LAST = (EPOCHS - 1, STEPS - 1)
HOUR, AN_HOUR = 3600.0, {"grace_period": 3600.0}
LONG_STEP, SIGNALS = 3.0, 5

# Before the strategy, as a user does: detecting the defects must not start TensorFlow, or it cannot be made.
enable_multi_worker_fit()
STRATEGY: Any = tf.distribute.MultiWorkerMirroredStrategy()
CASES: dict[str, Callable[[NoticedFit, FakeMetadata, dict[str, Any]], None]] = {}


def case(function: Callable[[NoticedFit, FakeMetadata, dict[str, Any]], None]) -> Any:
    CASES[function.__name__] = function
    return function


def on(worker: int, function: Callable[[], object]) -> Callable[[], object]:
    """The function on that worker, nothing on the other."""
    return function if worker == WORKER else lambda: None


@case
def undisturbed(job: NoticedFit, fake: FakeMetadata, notes: dict[str, Any]) -> None:
    job.fit(plain=True)


@case
def ends_within_the_grace(job: NoticedFit, fake: FakeMetadata, notes: dict[str, Any]) -> None:
    job.fit({(1, 2): on(1, sigterm)}, termination=AN_HOUR)


@case
def in_the_last_step(job: NoticedFit, fake: FakeMetadata, notes: dict[str, Any]) -> None:
    def strike() -> None:
        sigterm()
        job.await_told("plan")

    job.fit({LAST: on(0, strike)})


@case
def cancelled_after_the_first_save(job: NoticedFit, fake: FakeMetadata, notes: dict[str, Any]) -> None:
    events: list[str] = []

    def come() -> None:
        events.append(fake.azure.schedule("Terminate", not_before=time.time() + HOUR))
        job.await_told("notice")

    def go() -> None:
        job.await_told("commit")
        fake.azure.cancel(events[0])
        job.await_told("withdrawn")

    job.fit({(1, 1): on(1, come), (1, 4): on(1, go)})


@case
def cancelled_and_noticed_again(job: NoticedFit, fake: FakeMetadata, notes: dict[str, Any]) -> None:
    def come_and_go() -> None:
        event = fake.azure.schedule("Terminate", not_before=time.time() + HOUR)
        job.await_told("notice")
        fake.azure.cancel(event)
        job.await_told("withdrawn")

    job.fit({(0, 3): on(0, come_and_go), (2, 2): on(0, sigterm)})
    job.fit()


@case
def again_during_the_final_save(job: NoticedFit, fake: FakeMetadata, notes: dict[str, Any]) -> None:
    def again() -> None:
        if job.told("plan"):  # A save, and no look at whether the state can be saved.
            sigterm()

    job.fit({(1, 4): on(0, sigterm)}, on_save=again)
    job.fit()


@case
def in_a_long_step(job: NoticedFit, fake: FakeMetadata, notes: dict[str, Any]) -> None:
    """The step waits inside TensorFlow for a token, so that the main thread is away from Python."""
    tokens = tf.queue.FIFOQueue(1000, tf.float32, shapes=[()])
    sent: list[float] = []
    long = (1, 3)

    def slow_loss(y: Any, prediction: Any) -> Any:
        with tf.control_dependencies([tokens.dequeue()]):
            return tf.reduce_mean(tf.square(y - prediction), axis=-1)

    def strike() -> None:
        for _ in range(SIGNALS):
            time.sleep(LONG_STEP / (SIGNALS + 1))
            sent.append(time.time())
            sigterm()
        time.sleep(LONG_STEP / (SIGNALS + 1))
        tokens.enqueue(0.0)

    def give() -> None:
        tokens.enqueue(0.0)

    def wait() -> None:
        notes["began"] = time.time()
        threads.append(threading.Thread(target=strike) if WORKER == 0 else threading.Timer(LONG_STEP, give))
        threads[0].start()

    threads: list[threading.Thread] = []
    steps = {(epoch, batch): give for epoch in range(EPOCHS) for batch in range(STEPS)}
    job.model = Model(STRATEGY, slow_loss)
    outcome = job.fit({**steps, long: wait}, termination=AN_HOUR)
    threads[0].join()
    number = [step[:2] for step in outcome.steps].index(long)
    notes.update(sent=sent, ended=outcome.ended_at[number])


@case
def different_deadlines(job: NoticedFit, fake: FakeMetadata, notes: dict[str, Any]) -> None:
    """Worker 0 has an hour; worker 1, told later, has too little time to train on: its last save took long."""
    events: list[str] = []

    def in_seconds(seconds: float) -> Callable[[], object]:
        def schedule() -> None:
            events.append(fake.azure.schedule("Preempt", not_before=time.time() + seconds))
            job.await_told("notice")

        return schedule

    def slow() -> None:
        time.sleep(1.5)
        failpoints.clear_hook("save.before-parts")

    def both_saved() -> None:
        job.await_told("commit")

    if WORKER == 1:
        failpoints.set_hook("save.before-parts", slow)
    job.fit({(0, 2): on(0, in_seconds(HOUR)), (0, 4): both_saved, (1, 1): on(1, in_seconds(8))})
    fake.azure.cancel(events[0])  # The next machine is another one.
    job.fit()


@case
def undisturbed_and_long(job: NoticedFit, fake: FakeMetadata, notes: dict[str, Any]) -> None:
    job.epochs, job.batches = 1, 160
    job.fit(plain=True)


@case
def until_the_deadline(job: NoticedFit, fake: FakeMetadata, notes: dict[str, Any]) -> None:
    """Worker 1 is told first; worker 0 later, so that it would have more time."""
    job.epochs, job.batches = 1, 160
    strikes = {(0, 3): on(1, sigterm), (0, 20): on(0, sigterm)}
    notes["grace"] = 16.0  # Room to train on, also where the first step of a busy machine takes 2 s.
    job.fit(strikes, termination={"grace_period": notes["grace"], "exit_fn": None}, step_seconds=0.1)


def run(name: str, fake: FakeMetadata, model: Model) -> dict[str, Any]:
    handler, threads = signal.getsignal(signal.SIGTERM), set(threading.enumerate())
    began = time.time()
    job = NoticedFit(FOLDER / name, EPOCHS, WORKER, STRATEGY, model)
    notes: dict[str, Any] = {}
    CASES[name](job, fake, notes)
    started = set(threading.enumerate()) - threads
    notes["threads"] = [thread.name for thread in started if thread.name.startswith("keras_preempt")]
    notes["handler"] = is_given_back(signal.SIGTERM, handler)
    print(f"CASE {name}: {time.time() - began:.1f} s", flush=True)
    return {"fits": [asdict(outcome) for outcome in job.outcomes], "notes": notes}


def main() -> None:
    model = Model(STRATEGY)
    with FakeMetadata(["azure"]) as fake:
        os.environ.update(fake.environment, KERAS_PREEMPT_PLATFORM="azure")
        found = {name: run(name, fake, model) for name in CASES}
    (FOLDER / f"{WORKER}.json").write_text(json.dumps(found))
    ended = found["until_the_deadline"]["fits"][0]["ended"]
    sys.exit(int(ended.removeprefix("SystemExit ")) if ended.startswith("SystemExit ") else 0)


def resume() -> None:
    job = NoticedFit(FOLDER / "until_the_deadline", 1, WORKER, STRATEGY, batches=160)
    (FOLDER / f"{WORKER}.resumed.json").write_text(json.dumps(asdict(job.fit())))


if sys.argv[2:] == ["resume"]:
    resume()
else:
    main()
