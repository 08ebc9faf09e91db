"""One of several workers that save together: prints when it is ready, waits for a line, saves, prints what it wrote."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bucket_services import store_on_machine
from bucket_ways import commit_checkpoint, share_of, state

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.layout import attempt_directory, attempt_name
from keras_preempt.checkpoint.writer import write_part

worker, workers, size, connections, folder = *map(int, sys.argv[1:5]), sys.argv[5]


tensors = state(size)
share = share_of(tensors, worker, workers)
directory = attempt_directory(1, attempt_name(1, 1))
store = store_on_machine("gs", folder, connections, f"worker-{worker}")
store.prepare()
if worker == 0:
    incarnations.claim(store, {})
print("ready", flush=True)
sys.stdin.readline()
begun = time.perf_counter()
part = write_part(store, directory, worker, share)
if worker == 0:
    commit_checkpoint(store, tensors, workers)
print(sum(entry.size for entry in part.files), time.perf_counter() - begun, flush=True)
store.close()
