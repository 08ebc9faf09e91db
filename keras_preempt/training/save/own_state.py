"""What one worker alone has of a checkpoint, as a message to the worker that keeps it as well."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_preempt.checkpoint.documents import as_read
from keras_preempt.checkpoint.tensors import Array, Filling, new_places, stream

GIVEN_UP = "null"
"""Stands for what a worker does not tell."""


def packed(state: Mapping[str, Any], local: Mapping[str, Array], most: int) -> str:
    """Returns what one worker alone has as a message; `GIVEN_UP` if that is larger than `most` bytes."""
    data = b"".join(piece.tobytes() for piece in stream(local)) if local else b""
    text = json.dumps({"state": as_read(dict(state)), "local": base64.b64encode(data).decode()})
    return text if len(text) <= most else GIVEN_UP


def unpacked(text: str) -> tuple[Mapping[str, Any], Mapping[str, Array]] | None:
    """Undoes `packed`; None for what was too large, or given up."""
    told = json.loads(text)
    if told is None:
        return None
    data = np.frombuffer(base64.b64decode(told["local"]), np.uint8)
    if not len(data):
        return told["state"], {}
    filling, start = Filling("what a worker has told", len(data), new_places), 0
    for buffer in filling:
        buffer[:] = data[start : start + len(buffer)]
        start += len(buffer)
    return told["state"], filling.tensors
