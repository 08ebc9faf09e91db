"""The sum that guards every file: crc32c, as Google Cloud Storage takes it too."""

from __future__ import annotations

from typing import Any

import google_crc32c
import numpy as np

PIECE = 1 << 20
"""Bytes that stay in the processor's cache between being copied and being summed up."""


def extended(crc32c: int, data: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
    """Returns the sum over what `crc32c` is the sum of, and `data` after it.

    Args:
        crc32c: the sum so far; 0 at the beginning.
        data: bytes as a contiguous array. The library takes an array where it is, but no memoryview, of which a
            copy would have to be made.
    """
    # In pieces, because no other Python thread runs while the library sums up an array.
    for start in range(0, len(data), PIECE):
        crc32c = google_crc32c.extend(crc32c, data[start : start + PIECE])
    return crc32c
