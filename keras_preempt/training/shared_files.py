"""Warns, before the first step, of files that the callbacks of several workers would write at the same time.

All workers run one program, so that a relative path in a callback is one file for those that share a directory. If
two save a model in it at once, the file may be broken, and HDF5 ends one of them with an error about a lock.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from keras_preempt.process import this_process

logger = logging.getLogger("keras_preempt")

_PATHS: dict[type, str] = {keras.callbacks.ModelCheckpoint: "filepath", keras.callbacks.CSVLogger: "filename"}
"""Which attribute of a callback of Keras is the file that it writes."""


def written_by(callbacks: Iterable[keras.callbacks.Callback]) -> dict[str, Any]:
    """Returns what files the callbacks of this worker write, as JSON for `warn`."""
    files = [
        [type(callback).__name__, os.path.abspath(os.fspath(getattr(callback, attribute)))]
        for callback in callbacks
        for kind, attribute in _PATHS.items()
        if isinstance(callback, kind) and "://" not in str(getattr(callback, attribute))
    ]
    return {"machine": this_process.machine(), "files": files}


def warn(written: Mapping[int, Mapping[str, Any]]) -> None:
    """Warns of every file that several workers of one machine write.

    Args:
        written: What `written_by` returned, by worker.
    """
    writers: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for worker, told in sorted(written.items()):
        for callback, path in told.get("files", ()):
            writers[told["machine"], callback, path].append(worker)
    for (_, callback, path), workers in writers.items():
        if len(workers) > 1:
            logger.warning(
                "Workers %s write the same file: %s of %s. One of them may fail at it, or leave it broken. Put the "
                "worker's number in the path (json.loads(os.environ['TF_CONFIG'])['task']['index'] on TensorFlow, "
                "jax.process_index() on JAX), or pass %s on worker 0 alone.",
                ", ".join(map(str, workers)),
                path,
                callback,
                callback,
            )
