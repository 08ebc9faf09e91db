"""A stand-in for a training script: no TensorFlow, but real signals, checkpoints and status files.

Every worker stops at the drill's step, since this script has no alignment of its own. The environment
variable FAKE_FAULT makes it resume wrongly, or not at all.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import numpy as np

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.commit import commit, wait_for_commit
from keras_preempt.checkpoint.layout import attempt_directory, attempt_name
from keras_preempt.checkpoint.partition import TensorSpec, partition
from keras_preempt.checkpoint.reader import committed, load
from keras_preempt.checkpoint.store import open_store
from keras_preempt.checkpoint.writer import write_part

TOTAL = 20
config = json.loads(os.environ.get("TF_CONFIG", '{"cluster": {"worker": [1]}, "task": {"index": 0}}'))
member, members = config["task"]["index"], len(config["cluster"]["worker"])
incarnation = int(os.environ["KERAS_PREEMPT_LAUNCHER_INCARNATION"]) + 1
drill = json.loads(os.environ.get("KERAS_PREEMPT_DRILL", '{"member": -1, "step": -1}'))
fault = os.environ.get("FAKE_FAULT", "")
started = time.monotonic()
terminated = []
signal.signal(signal.SIGTERM, lambda *arguments: terminated.append(True))

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
first = step
if member == 0:
    incarnations.claim(store, {})
restored = time.monotonic()
while step < TOTAL and not (step == drill["step"] and fault != "deaf"):
    step += 1
    weights = weights * np.float32(0.9) + np.float32(step)
    counter = counter + 1
    history.append(float(weights[0]))
if fault == "crash" and drill["step"] >= 0:
    sys.exit(3)
if drill["member"] == member and step == drill["step"]:
    os.kill(os.getpid(), signal.SIGTERM)
    assert terminated
trained = time.monotonic()

attempt = attempt_name(incarnation, 0)
directory = attempt_directory(step, attempt)
position = {"epoch": 0, "phase": "train", "batch": step}
finished = step == TOTAL
spec = TensorSpec("weights", "float32", (6,))
share = partition([spec], members)[member]
state = {"callbacks": {"History": history}, "timing": {"train": trained - restored}}
write_part(store, directory, member, [(cut, weights) for cut in share], {"counter": counter}, state, position)
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
if fault != "silent":
    status = {
        "step": step,
        "saved": True,
        "committed": attempt,
        "finished": finished,
        "steps_run": step - first,
        "timing": {"restore": restored - started, "train": trained - restored, "odd": 1.0},
    }
    with open(os.path.join(os.environ["KERAS_PREEMPT_STATUS_DIR"], f"worker-{member}.json"), "w") as file:
        json.dump(status, file)
sys.exit(0 if finished else 75)
