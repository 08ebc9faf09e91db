"""One of several workers that restore a state: SCHEME SIZE FOLDER.

Prints when it is ready. For each line, "read" or "exchange", it restores that way, as the start of a fit does, and
prints how many seconds that took.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()

import numpy as np  # noqa: E402  the strategy comes first
from bucket_services import store_on_machine  # noqa: E402
from bucket_ways import state  # noqa: E402

from keras_preempt.backend.seam import backend  # noqa: E402
from keras_preempt.checkpoint.finding import CheckpointInfo, committed  # noqa: E402
from keras_preempt.checkpoint.reader import Loaded, Reading  # noqa: E402
from keras_preempt.checkpoint.setup import Setup  # noqa: E402
from keras_preempt.checkpoint.storage.bucket import CONNECTIONS  # noqa: E402
from keras_preempt.training.start.handshake import START_TIMEOUT, Handshake  # noqa: E402
from keras_preempt.training.start.reading_together import Share  # noqa: E402

scheme, size, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
here = backend().place(strategy)
coordinator = backend().coordinator(here)


store = store_on_machine(scheme, folder, CONNECTIONS, f"worker-{here.member}")
setup = Setup(1, 1, None, None, 0)  # What the checkpoint was saved on.
gather = backend().gather(here, START_TIMEOUT)
expected = state(size)


def read_share(info: CheckpointInfo, own: tuple[int, int]) -> Share:
    reading = Reading(store, info, share=own)
    return Share(reading.load(own[0], setup), reading, gather, contextlib.nullcontext)


def restore(way: str, handshake: Handshake) -> Loaded | None:
    info = committed(store)[0]
    if way == "read":
        return handshake.agree("read", info.directory, lambda: Reading(store, info).load(0, setup))[0]
    own = (here.member, here.members)
    share, _ = handshake.agree(
        "read",
        info.directory,
        lambda: read_share(info, own),
        lambda share: share.reading.plan,
    )
    return share and handshake.agree("exchange", info.directory, share.exchange)[0]


print("ready", flush=True)
for number, line in enumerate(sys.stdin):
    begun = time.perf_counter()
    loaded = restore(line.strip(), Handshake(coordinator, number))
    took = time.perf_counter() - begun
    if loaded is None or not all(
        np.array_equal(loaded.values.whole[name], array) for name, array in expected.items()
    ):
        raise SystemExit("Expected the state as it was saved. Received: something else.")
    print(took, flush=True)
store.close()
