"""A stand-in for a training script: no TensorFlow, but real signals, checkpoints, records and status files.

Every worker stops at the drill's step, since this script has no alignment of its own. It validates after every
fifth step. The environment variable FAKE_FAULT makes it resume wrongly, or not at all, or behave badly otherwise;
FAKE_FITS names the directories of its fits, one after the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable

import numpy as np

from keras_preempt.agreement.messages import Position
from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.commit import Patience, commit, wait_for_commit
from keras_preempt.checkpoint.division import divide
from keras_preempt.checkpoint.errors import NotFound
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.layout import attempt_directory, attempt_name
from keras_preempt.checkpoint.reader import load
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.checkpoint.values import Value
from keras_preempt.checkpoint.writer import WorkerShare, write_part
from keras_preempt.drilled import hooks, places
from keras_preempt.drilled.rehearsal import Drill
from keras_preempt.drilled.step_record import Begun, StepRecord
from keras_preempt.report.events import EventLog, log_name

TOTAL, VALIDATED_EVERY, VALIDATION_BATCHES = 20, 5, 4
config = json.loads(os.environ.get("TF_CONFIG", '{"cluster": {"worker": [1]}, "task": {"index": 0}}'))
member, members = config["task"]["index"], len(config["cluster"]["worker"])
launched = int(os.environ["KERAS_PREEMPT_LAUNCHER_INCARNATION"])
wanted = json.loads(os.environ.get("KERAS_PREEMPT_DRILL") or '{"member": -1, "step": -1}')
save_every = int(os.environ.get("KERAS_PREEMPT_SAVE_EVERY") or 0)
fault = os.environ.get("FAKE_FAULT", "")
doubt = os.environ.get("FAKE_DOUBT", "")
started = time.monotonic()
terminated: list[int] = []
for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: terminated.append(number))

if fault == "starts slowly" and launched:
    time.sleep(1)  # As long as a real script imports TensorFlow; the end of a grace period must not hit it.
while fault == "waits" and launched and not terminated:
    signal.sigtimedwait([], 0.01)


def await_notice(ask: Callable[[], object], timeout: float, at: Position | None) -> bool:
    """As `keras_preempt.drilled.rehearsal.AwaitNotice`: all signals arrive in the main thread."""
    before = len(terminated)
    ask()
    end = time.monotonic() + timeout
    while len(terminated) <= before and time.monotonic() < end:
        signal.sigtimedwait([], 0.01)
    return len(terminated) > before


def claimed(store: Store, launched: int) -> int:
    """The number of this start in a directory, which worker 0 claims and writes for the others."""
    told = f"numbers/{launched:05d}"
    while True:
        with contextlib.suppress(NotFound):
            return int(store.read(told, limit=100))
        signal.sigtimedwait([], 0.01)


def fit(directory: str, number: int) -> None:
    """One fit of the script, from where it was left; does not return if it is preempted."""
    global events, first, incarnation, history, record, saves, saving, step, store, weights, counter, drill
    place = str(hooks.directory_for(directory))
    store = open_store(place if number == 1 else f"{place}/fit-{number:05d}")
    store.prepare()
    weights, counter, history, step = np.zeros(6, np.float32), np.array(member), [], 0
    found = committed(store)
    if found:
        loaded = load(store, found[0], member, members)
        step, history = loaded.manifest.step, loaded.state["callbacks"]["History"]
        weights, counter = loaded.values.whole["weights"].copy(), loaded.values.local["counter"].copy()
        if fault == "weights":
            weights[3] += np.float32(1e-3)
        if fault == "history":
            history = history[1:]
    first, saves, saving = step, 0, None
    claim = {incarnations.ALONE: {}} if fault == "alone" else {}
    incarnation = incarnations.claim(store, claim) if member == 0 else claimed(store, launched)
    if member == 0:
        store.create(f"numbers/{launched:05d}", str(incarnation).encode())
    events = EventLog(member)
    events.open(incarnation, store.append_log(log_name(incarnation, member)))
    record = StepRecord.from_environment(
        member, lambda: {"model/weights": weights, "metrics/counter": counter}, weights.nbytes
    )
    assert record is not None
    name = places.fit_name(store.key)
    record.begin(
        Begun(
            step,
            found[0].directory if found else "",
            [doubt] if doubt else [],
            os.environ.get("FAKE_UNSAVED", "").split(),
            fit=name,
            directory=places.given(name),
            condition=os.environ.get("FAKE_CONDITION", ""),
        )
    )
    drill = Drill.from_environment(member, name) if fault != "deaf" else None
    if drill is not None:
        drill.begin(lambda: saving, await_notice)
    restored = time.monotonic()
    train(bool(found), name)
    trained = time.monotonic()
    finished = step == TOTAL
    if finished and first < TOTAL and fault != "silent":
        record.boundary(Position(1, "end", 0, step), {})
        record.sources([os.environ["FAKE_SOURCE"]] if "FAKE_SOURCE" in os.environ else [])
    if first < TOTAL:
        save(finished=finished, restored=restored)
    events.close()
    store.close()
    record.close()
    if drill is not None:
        drill.end()
    if fault == "writes":
        with open("log.csv", "a") as file:
            file.write("line\n")
    if fault != "silent":
        status = {
            "step": step,
            "saved": True,
            "committed": "yes",
            "finished": finished,
            "exit_code": None if finished else 75,
            "steps_run": step - first,
            "timing": {"restore": restored - started, "train": trained - restored, "odd": 1.0},
        }
        with open(os.path.join(os.environ["KERAS_PREEMPT_STATUS_DIR"], f"worker-{member}.json"), "w") as file:
            json.dump(status, file)
    while fault == "does not end" and not finished and member == members - 1:
        signal.pause()
    if not finished:
        sys.exit(75)


def save(*, finished: bool = False, restored: float = 0.0) -> None:
    global saves
    attempt = attempt_name(incarnation, saves)
    saves += 1
    directory = attempt_directory(step, attempt)
    position = {"epoch": 0, "phase": "end" if finished else "train", "batch": step, "step": step}
    values = [Value("weights", "float32", (6,))]
    boxes = [(box, box.of(weights)) for box in divide(values, range(members))[member]]
    state = {"callbacks": {"History": history}, "timing": {"train": time.monotonic() - restored}}
    write_part(store, directory, member, WorkerShare(boxes, {"counter": counter}, state, position))
    events.emit("save", attempt=attempt, step=step, seconds=0.0)
    if member == 0:
        saved = Attempt(
            step=step,
            name=attempt,
            position=position,
            kind="finished" if finished else "preemption",
            members=members,
            writers=tuple(range(members)),
            finished=finished,
            values=values,
        )
        commit(store, saved, Patience(30, 30))
    else:
        assert wait_for_commit(store, directory, 30) is not None


def boundary(phase: str, batch: int, name: str) -> bool:
    """Whether this is where a notice stops the training."""
    position = Position(0, phase, batch, step)
    record.boundary(position, {"loss": float(weights[0])})
    if drill is not None:
        drill.strike(position, await_notice)
    elsewhere = (
        wanted["member"] not in (-1, member)
        and fault != "deaf"
        and wanted.get("at", "train") == "train"
        and wanted.get("fit") == name
    )
    return bool(terminated) or (elsewhere and phase == "train" and step >= wanted["step"])


def train(resumed: bool, name: str) -> None:
    """Runs the steps of a fit, to its end or to where a notice stops it."""
    global weights, counter, step, saving
    stopped = False
    while step < TOTAL and not stopped:
        if save_every and step > first and step % save_every == 0:
            saving = step
            save()
            saving = None
        stopped = boundary("train", step, name)
        if stopped:
            break
        step += 1
        weights = weights * np.float32(0.9) + np.float32(step)
        if (fault == "drift" and resumed and step == first + 3) or (fault == "unrepeatable" and step == 1):
            weights[1] += np.float32(time.time() % 1)
        counter = counter + 1
        history.append(float(weights[0]))
        if step % VALIDATED_EVERY == 0 and fault != "no validation":
            stopped = any(boundary("validation", batch, name) for batch in range(VALIDATION_BATCHES))
    if fault == "crash" and wanted["step"] >= 0:
        sys.exit(3)
    if fault == "stays" and stopped:
        while True:
            signal.pause()


begun: list[str] = []
for each in os.environ.get("FAKE_FITS", "run").split(","):
    begun.append(each)
    fit(each.replace("TIME", str(time.time())), begun.count(each))
