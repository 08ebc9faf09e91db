"""Two workers put TensorFlow's coordination service through what a `Coordinator` promises.

Usage: ``coordination.py``. Each worker writes one line, ``result <JSON>``, with what it found.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_preempt.agreement.coordinator import CoordinationLost, CoordinationTimeout, Coordinator
from keras_preempt.backend.tensorflow.coordination import CoordinationKeys, ServiceCoordinator

member = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
coordinator: Coordinator = ServiceCoordinator(member, 2)
found: dict[str, Any] = {"available": CoordinationKeys().available()}
WAIT = 60.0


def meet(name: str) -> None:
    """Both workers have come this far."""
    coordinator.put_if_absent(f"meet/{name}/{member}", "x")
    coordinator.wait_for(f"meet/{name}/{1 - member}", WAIT)


meet("begin")

# The first insert wins, for both: 200 races.
# From opposite ends, so that the one without a network in between does not win them all.
order = range(200) if member == 0 else reversed(range(200))
found["won"] = []
for index in order:
    if coordinator.put_if_absent(f"race/{index}", str(member)):
        found["won"].append(index)
    threading.Event().wait(0.001)
meet("raced")
found["values"] = "".join(coordinator.wait_for(f"race/{index}", WAIT) for index in range(200))

# A wait in a thread returns when the other inserts; meanwhile the main thread runs Python.
values: list[str] = []
waiter = threading.Thread(target=lambda: values.append(coordinator.wait_for(f"late/{member}", None)))
waiter.start()
counted = 0
limit = time.monotonic() + 0.2
while time.monotonic() < limit:
    counted += 1
found["counted"] = counted
found["early"] = list(values)
meet("counted")
coordinator.put_if_absent(f"late/{1 - member}", f"from {member}, \u00e9, {'x' * 10_000}")
waiter.join(WAIT)
found["late"] = [value[:9] + str(len(value)) for value in values]

began = time.monotonic()
try:
    coordinator.wait_for("never", 0.3)
except CoordinationTimeout as error:
    found["timeout"] = str(error)
found["waited"] = time.monotonic() - began
try:
    coordinator.wait_for("never", 0.0)
except CoordinationTimeout:
    found["no time left"] = True

# Deleting removes what is below, nothing beside; a key may then be inserted again.
meet("before deletion")
if member == 0:
    for key in ("round/1/call", "round/1/at/0", "round/10/call"):
        coordinator.put_if_absent(key, "old")
    coordinator.delete("round/1")
    coordinator.delete("nothing/here")
meet("deleted")
if member == 1:
    found["again"] = [
        coordinator.put_if_absent(key, "new") for key in ("round/1/call", "round/1/at/0", "round/10/call")
    ]
meet("inserted again")

# An error that one member reports ends the other's collectives; the keys stay.
value = strategy.reduce("SUM", strategy.run(lambda: tf.constant(member + 1.0)), axis=None)
found["sum"] = float(value)
if member == 1:
    coordinator.report_error("worker 1 gives up")
    found["reported"] = True
else:
    began = time.monotonic()
    try:
        strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None)
    except tf.errors.OpError as error:
        found["collective"] = error.message
    found["collective ended after"] = time.monotonic() - began

print("result", json.dumps(found), flush=True)

# The leader goes, and coordination with it. No collective, and so no goodbye, is possible any more.
if member == 0:
    os._exit(0)
limit = time.monotonic() + WAIT
calls: dict[str, Callable[[], object]] = {
    "put_if_absent": lambda: coordinator.put_if_absent(f"alone/{time.monotonic()}", "x"),
    "wait_for": lambda: coordinator.wait_for("late/0", WAIT),
}
for name, call in calls.items():
    while time.monotonic() < limit:
        try:
            call()
        except CoordinationLost:
            print("lost", name, flush=True)
            break
        threading.Event().wait(0.02)  # It is about to go.
os._exit(0)
