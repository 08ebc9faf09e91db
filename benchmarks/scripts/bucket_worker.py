"""One of several workers that save together: prints when it is ready, waits for a line, saves, prints what it wrote."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bucket_services import BUCKET
from bucket_ways import commit_checkpoint, share_of, state
from google.api_core.client_info import ClientInfo
from google.cloud import storage

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.layout import attempt_directory, attempt_name
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.writer import write_part

worker, workers, size, connections, folder = *map(int, sys.argv[1:5]), sys.argv[5]


def connect() -> storage.Client:
    # By its User-Agent the fake knows which machine a connection comes from.
    return storage.Client(project=None, client_info=ClientInfo(user_agent=f"worker-{worker}"))


tensors = state(size)
share = share_of(tensors, worker, workers)
directory = attempt_directory(1, attempt_name(1, 1))
store = GcsStore(f"gs://{BUCKET}/{folder}", connect=connect, connections=connections)
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
