"""Two workers put TensorFlow's coordination service through what a `Coordinator` promises.

Usage: ``coordination.py``. Each worker writes one line, ``result <JSON>``, with what it found. In between worker 1
freezes worker 0, which hosts the service, and asks the service while it cannot answer. It writes ``pending <call>``
when its main thread runs while the call waits for its answer, and ``answered <call>`` when it comes back.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_preempt.agreement.coordinator import CoordinationLost, CoordinationTimeout, Coordinator
from keras_preempt.backend.tensorflow.coordination import ServiceCoordinator

member = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
coordinator: Coordinator = ServiceCoordinator(member, 2)
found: dict[str, Any] = {}
WAIT = 60.0


def meet(name: str) -> None:
    """Both workers have come this far."""
    coordinator.put_if_absent(f"meet/{name}/{member}", "x")
    coordinator.wait_for(f"meet/{name}/{1 - member}", WAIT)


def frozen(process: int) -> bool:
    """Whether each of its threads has stopped."""
    threads = Path(f"/proc/{process}/task").iterdir()
    return {(thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads} == {"T"}


def ask_frozen(name: str, call: Callable[[], object]) -> None:
    """Makes the call while the leader is frozen, for less time than makes it count as lost."""
    asking = threading.Thread(target=call)
    os.kill(leader, signal.SIGSTOP)
    try:
        while not frozen(leader):
            time.sleep(0.01)  # A stop cannot be waited for by somebody who is no parent.
        asking.start()
        asking.join(0.5)  # Returns only if the call lets other threads run.
        print("pending" if asking.is_alive() else "not asked", name, flush=True)
    finally:
        os.kill(leader, signal.SIGCONT)
    asking.join(WAIT)
    print("stuck" if asking.is_alive() else "answered", name, flush=True)


if member == 0:
    coordinator.put_if_absent("leader", str(os.getpid()))
leader = int(coordinator.wait_for("leader", WAIT))
meet("begin")

# The first insert wins, for both: 100 races.
# From opposite ends, so that the one without a network in between does not win them all.
order = range(100) if member == 0 else reversed(range(100))
found["won"] = []
for index in order:
    if coordinator.put_if_absent(f"race/{index}", str(member)):
        found["won"].append(index)
    threading.Event().wait(0.001)
meet("raced")
found["values"] = "".join(coordinator.wait_for(f"race/{index}", WAIT) for index in range(100))

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
    ask_frozen("gone", coordinator.gone)
    ask_frozen("put_if_absent", lambda: coordinator.put_if_absent("over", "1"))
    ask_frozen("report_error", lambda: coordinator.report_error("worker 1 gives up"))
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
