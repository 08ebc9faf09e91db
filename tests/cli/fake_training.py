"""A stand-in for a training script: no TensorFlow, but real signals, checkpoints, records and status files.

Every worker stops at the drill's step, since this script has no alignment of its own. It validates after every
fifth step. The environment variable FAKE_FAULT makes it resume wrongly, or not at all, or behave badly otherwise.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import numpy as np

from keras_preempt.alignment import Position
from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.commit import commit, wait_for_commit
from keras_preempt.checkpoint.layout import attempt_directory, attempt_name
from keras_preempt.checkpoint.partition import TensorSpec, partition
from keras_preempt.checkpoint.reader import committed, load
from keras_preempt.checkpoint.store import open_store
from keras_preempt.checkpoint.writer import write_part
from keras_preempt.drill import Drill
from keras_preempt.events import EventLog, log_name
from keras_preempt.step_record import StepRecord

TOTAL, VALIDATED_EVERY, VALIDATION_BATCHES = 20, 5, 4
config = json.loads(os.environ.get("TF_CONFIG", '{"cluster": {"worker": [1]}, "task": {"index": 0}}'))
member, members = config["task"]["index"], len(config["cluster"]["worker"])
launched = int(os.environ["KERAS_PREEMPT_LAUNCHER_INCARNATION"])
wanted = json.loads(os.environ.get("KERAS_PREEMPT_DRILL") or '{"member": -1, "step": -1}')
save_every = int(os.environ.get("KERAS_PREEMPT_SAVE_EVERY") or 0)
fault = os.environ.get("FAKE_FAULT", "")
started = time.monotonic()
terminated: list[int] = []
for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: terminated.append(number))

if fault == "starts slowly" and launched:
    time.sleep(1)  # As long as a real script imports TensorFlow; the end of a grace period must not hit it.
store = open_store(os.environ["KERAS_PREEMPT_DIRECTORY"])
store.prepare()
weights, counter, history, step = np.zeros(6, np.float32), np.array(member), [], 0
found = committed(store)
if found:
    loaded = load(store, found[0], member, members)
    step, history = loaded.manifest.step, loaded.state["callbacks"]["History"]
    weights, counter = loaded.tensors["weights"].copy(), loaded.local["counter"].copy()
    if fault == "weights":
        weights[3] += np.float32(1e-3)
    if fault == "history":
        history = history[1:]
first, saves, saving = step, 0, None
claim = {incarnations.ALONE: {}} if fault == "alone" else {}
incarnation = incarnations.claim(store, claim) if member == 0 else launched + 1
events = EventLog(member)
events.open(incarnation, store.append_log(log_name(incarnation, member)))
record = StepRecord.from_environment(
    member, lambda: {"model/weights": weights, "metrics/counter": counter}, weights.nbytes
)
assert record is not None
doubt = os.environ.get("FAKE_DOUBT", "")
record.begin(step, found[0].directory if found else "", not doubt, doubt)
drill = Drill.from_environment(member) if fault != "deaf" else None
if drill is not None:
    drill.begin(lambda: saving)
restored = time.monotonic()


def save(*, finished: bool = False) -> None:
    global saves
    attempt = attempt_name(incarnation, saves)
    saves += 1
    directory = attempt_directory(step, attempt)
    position = {"epoch": 0, "phase": "end" if finished else "train", "batch": step, "step": step}
    spec = TensorSpec("weights", "float32", (6,))
    share = partition([spec], members)[member]
    state = {"callbacks": {"History": history}, "timing": {"train": time.monotonic() - restored}}
    write_part(
        store, directory, member, [(cut, weights) for cut in share], {"counter": counter}, state, position
    )
    events.emit("save", attempt=attempt, step=step, seconds=0.0)
    if member == 0:
        commit(
            store,
            directory,
            expected=range(members),
            writers=range(members),
            timeout=30,
            optional_timeout=30,
            incarnation=incarnation,
            step=step,
            position=position,
            attempt=attempt,
            kind="finished" if finished else "preemption",
            finished=finished,
            reason="",
            versions={},
        )
    else:
        assert wait_for_commit(store, directory, 30) is not None


def boundary(phase: str, batch: int) -> bool:
    """Whether this is where a notice stops the training."""
    position = Position(0, phase, batch, step)
    record.boundary(position, {"loss": float(weights[0])})
    if drill is not None:
        drill.strike(position)
    elsewhere = (
        wanted["member"] not in (-1, member) and fault != "deaf" and wanted.get("at", "train") == "train"
    )
    return bool(terminated) or (elsewhere and phase == "train" and step >= wanted["step"])


stopped = False
while step < TOTAL and not stopped:
    if save_every and step > first and step % save_every == 0:
        saving = step
        save()
        saving = None
    stopped = boundary("train", step)
    if stopped:
        break
    step += 1
    weights = weights * np.float32(0.9) + np.float32(step)
    if (fault == "drift" and found and step == first + 3) or (fault == "unrepeatable" and step == 1):
        weights[1] += np.float32(time.time() % 1)
    counter = counter + 1
    history.append(float(weights[0]))
    if step % VALIDATED_EVERY == 0 and fault != "no validation":
        stopped = any(boundary("validation", batch) for batch in range(VALIDATION_BATCHES))
if fault == "crash" and wanted["step"] >= 0:
    sys.exit(3)
if fault == "stays" and stopped:
    while True:
        signal.pause()
trained = time.monotonic()
finished = step == TOTAL
if finished:
    record.boundary(Position(1, "end", 0, step), {})
    record.sources([os.environ["FAKE_SOURCE"]] if "FAKE_SOURCE" in os.environ else [])
save(finished=finished)
events.close()
store.close()
if fault in ("two fits", "alone"):
    record.begin(step, "", True, "")
record.close()
if fault == "writes":
    with open("log.csv", "a") as file:
        file.write("line\n")
if fault != "silent":
    status = {
        "step": step,
        "saved": True,
        "committed": "yes",
        "finished": finished,
        "steps_run": step - first,
        "timing": {"restore": restored - started, "train": trained - restored, "odd": 1.0},
    }
    with open(os.path.join(os.environ["KERAS_PREEMPT_STATUS_DIR"], f"worker-{member}.json"), "w") as file:
        json.dump(status, file)
sys.exit(0 if finished else 75)
