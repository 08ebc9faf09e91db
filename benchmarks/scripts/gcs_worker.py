"""One of several workers that save together: prints when it is ready, waits for a line, saves, prints what it wrote."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gcs_ways import BUCKET, POSITION, commit_checkpoint, state
from google.api_core.client_info import ClientInfo
from google.cloud import storage

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.layout import attempt_directory, attempt_name
from keras_preempt.checkpoint.partition import TensorSpec, partition
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.writer import write_part

worker, workers, size, connections, folder = *map(int, sys.argv[1:5]), sys.argv[5]


def connect() -> storage.Client:
    # By its User-Agent the fake knows which machine a connection comes from.
    return storage.Client(project=None, client_info=ClientInfo(user_agent=f"worker-{worker}"))


tensors = state(size)
specs = [TensorSpec(name, array.dtype.name, array.shape) for name, array in tensors.items()]
mirrored = [(slice_, tensors[slice_.tensor]) for slice_ in partition(specs, workers)[worker]]
directory = attempt_directory(1, attempt_name(1, 1))
store = GcsStore(f"gs://{BUCKET}/{folder}", connect=connect, connections=connections)
store.prepare()
if worker == 0:
    incarnations.claim(store, {})
print("ready", flush=True)
sys.stdin.readline()
begun = time.perf_counter()
part = write_part(store, directory, worker, mirrored, {}, {}, POSITION)
if worker == 0:
    commit_checkpoint(store, workers)
print(sum(entry.size for entry in part.files), time.perf_counter() - begun, flush=True)
store.close()
