"""The file of rows that a CSVLogger writes, as it was when a checkpoint was made.

Keras empties it when `fit` begins, or goes on at its end: a restart would lose the rows of the epochs before, or,
after a kill, have those of the epochs that are run again twice. And the file may have stayed on another machine. So
a checkpoint holds the rows, and a restore puts them back.
"""

from __future__ import annotations

import logging
from pathlib import Path

import keras
import numpy as np

from keras_preempt.checkpoint.tensors import Array

logger = logging.getLogger("keras_preempt")

LARGEST = 16 << 20
"""Bytes of a file of rows that a checkpoint holds, at most."""


def read_rows(callback: keras.callbacks.CSVLogger) -> Array | None:
    """Returns the bytes of the file, of shape (size,).

    Returns:
        None if there is no file, if it is in a remote file system or larger than `LARGEST`.
    """
    path = _local(callback)
    if path is None or not path.is_file() or path.stat().st_size > LARGEST:
        return None
    return np.frombuffer(path.read_bytes(), dtype=np.uint8)


def has_rows(callback: keras.callbacks.CSVLogger) -> bool:
    """Whether its file has something in it."""
    path = _local(callback)
    return path is not None and path.is_file() and path.stat().st_size > 0


def put_rows_back(callback: keras.callbacks.CSVLogger, rows: Array) -> None:
    """Makes the file what it was, so that the callback can go on at its end.

    A file that went another way, that neither begins with `rows` nor is their beginning, is left as it is, with a
    warning.
    """
    path = _local(callback)
    if path is None:
        return
    wanted = rows.tobytes()
    present = path.read_bytes() if path.is_file() else b""
    if present == wanted:
        return
    if not (present.startswith(wanted) or wanted.startswith(present)):
        logger.warning(
            "CSVLogger: expected %s to begin as it was when the checkpoint was made. Received: other rows. It is left "
            "as it is, and what comes now is added at its end.",
            path,
        )
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(wanted)


def _local(callback: keras.callbacks.CSVLogger) -> Path | None:
    name = str(callback.filename)
    return None if "://" in name else Path(name)
