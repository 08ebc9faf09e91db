"""One of several processes that share a save: DIRECTORY MEGABYTES MEMBER WRITERS.

Prints "ready", waits for a line, and writes; worker 0 commits. Prints as JSON how many bytes it wrote and when, by
the monotonic clock, it was done. Needs no TensorFlow.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.commit import Patience, commit
from keras_preempt.checkpoint.division import divide
from keras_preempt.checkpoint.layout import attempt_directory, attempt_name
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.values import Value
from keras_preempt.checkpoint.writer import WorkerShare, write_part

TENSORS = 25  # one of them with a quarter of the bytes
POSITION = {"epoch": 0, "phase": "train", "batch": 0, "step": 0}


def main() -> None:
    directory, megabytes, member, writers = sys.argv[1], *map(int, sys.argv[2:5])
    store = LocalStore(directory)
    store.prepare()
    elements = megabytes * 250_000
    sizes = [elements // 4, *[elements * 3 // 4 // (TENSORS - 1)] * (TENSORS - 1)]
    values = [Value(f"tensor {number}", "float32", (size,)) for number, size in enumerate(sizes)]
    random = np.random.default_rng(member)
    boxes = [
        (box, random.random(box.extent, dtype=np.float32)) for box in divide(values, range(writers))[member]
    ]
    attempt = attempt_name(1, 0)
    print("ready", flush=True)
    sys.stdin.readline()
    write_part(store, attempt_directory(0, attempt), member, WorkerShare(boxes, {}, {}, POSITION))
    if member == 0:
        saved = Attempt(
            step=0,
            name=attempt,
            position=POSITION,
            kind="preemption",
            members=writers,
            writers=tuple(range(writers)),
            values=values,
        )
        commit(store, saved, Patience(300.0))
    written = sum(box.nbytes for box, _ in boxes)
    print(json.dumps({"bytes": written, "committed": time.monotonic()}))


if __name__ == "__main__":
    main()
