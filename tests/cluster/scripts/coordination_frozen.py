"""Worker 1 freezes worker 0, which hosts the coordination service, and asks the service while it cannot answer.

Usage: ``coordination_frozen.py``. Worker 1 writes ``pending <call>`` when its main thread runs while the call waits for
its answer, and ``answered <call>`` when worker 0 goes on and the call comes back.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from keras_preempt.backend.tensorflow.coordination import ServiceCoordinator

member = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
coordinator = ServiceCoordinator(member, 2)
WAIT = 60.0


def frozen(process: int) -> bool:
    """Whether each of its threads has stopped."""
    threads = Path(f"/proc/{process}/task").iterdir()
    return {(thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads} == {"T"}


def ask(name: str, call: Callable[[], object], leader: int) -> None:
    """Makes the call while the leader is frozen, for less time than makes it count as lost."""
    asking = threading.Thread(target=call)
    os.kill(leader, signal.SIGSTOP)
    try:
        while not frozen(leader):
            time.sleep(0.01)  # A stop cannot be waited for by somebody who is no parent.
        asking.start()
        asking.join(2.0)  # Returns only if the call lets other threads run.
        print("pending" if asking.is_alive() else "not asked", name, flush=True)
    finally:
        os.kill(leader, signal.SIGCONT)
    asking.join(WAIT)
    print("stuck" if asking.is_alive() else "answered", name, flush=True)


if member == 0:
    coordinator.put_if_absent("leader", str(os.getpid()))
    coordinator.wait_for("over", WAIT)
else:
    leader = int(coordinator.wait_for("leader", WAIT))
    ask("gone", coordinator.gone, leader)
    ask("put_if_absent", lambda: coordinator.put_if_absent("over", "1"), leader)
    ask("report_error", lambda: coordinator.report_error("worker 1 gives up"), leader)
