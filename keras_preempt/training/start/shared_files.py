"""Warns, before the first step, of files that the callbacks of several workers would write at the same time.

All workers run one program, so that a relative path in a callback is one file for those that share a directory. If
two save a model in it at once, the file may be broken, and HDF5 ends one of them with an error about a lock.

On JAX all processes that train together have to save a model at the same moment: while Keras saves, it puts values onto
the devices of all of them. On some of them alone, such a callback fails, or waits forever.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from keras_preempt.process import this_process
from keras_preempt.process.words import numbered

logger = logging.getLogger("keras_preempt")

_PATHS: dict[type, str] = {keras.callbacks.ModelCheckpoint: "filepath", keras.callbacks.CSVLogger: "filename"}
"""Which attribute of a callback of Keras is the file that it writes."""


def written_by(callbacks: Iterable[keras.callbacks.Callback]) -> dict[str, Any]:
    """Returns what files the callbacks of this worker write, and which of them save models, as JSON for `warn`."""
    callbacks = list(callbacks)
    files = [
        [type(callback).__name__, os.path.abspath(os.fspath(getattr(callback, attribute)))]
        for callback in callbacks
        for kind, attribute in _PATHS.items()
        if isinstance(callback, kind) and "://" not in str(getattr(callback, attribute))
    ]
    # Older releases of Keras have no OrbaxCheckpoint.
    savers = [keras.callbacks.ModelCheckpoint, getattr(keras.callbacks, "OrbaxCheckpoint", None)]
    saves_models = tuple(filter(None, savers))
    saving = [type(callback).__name__ for callback in callbacks if isinstance(callback, saves_models)]
    return {"machine": this_process.machine(), "files": files, "saving": saving}


def warn(written: Mapping[int, Mapping[str, Any]]) -> None:
    """Warns of every file that several workers of one machine write, and of models that some workers alone save on JAX.

    `written` is what `written_by` returned, by worker.
    """
    on_jax = keras.backend.backend() == "jax"
    writers: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    savers: dict[str, list[int]] = defaultdict(list)
    for worker, told in sorted(written.items()):
        for callback, path in told.get("files", ()):
            writers[told["machine"], callback, path].append(worker)
        for callback in set(told.get("saving", ())):
            savers[callback].append(worker)
    for (_, callback, path), workers in writers.items():
        if len(workers) > 1:
            together = on_jax and callback in savers
            logger.warning(
                "Workers %s write the same file: %s of %s. One of them may fail at it, or leave it broken. Put the "
                "worker's number in the path (%s)%s.",
                ", ".join(map(str, workers)),
                path,
                callback,
                "jax.process_index()" if on_jax else "json.loads(os.environ['TF_CONFIG'])['task']['index']",
                ". On JAX all workers have to save a model together"
                if together
                else f", or pass {callback} on worker 0 alone",
            )
    for callback, workers in savers.items():
        if on_jax and len(workers) < len(written):
            logger.warning(
                "%s is passed on %s alone. On JAX all workers have to save a model together: alone, it fails or waits "
                "forever. Pass it on all workers, %s.",
                callback,
                numbered("worker", workers),
                "each with jax.process_index() in its path"
                if callback == "ModelCheckpoint"
                else "with the same directory",
            )
