"""The element types that a checkpoint can hold: their NumPy names, and their codes in safetensors files."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

_CODES: dict[str, str] = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}
if not hasattr(ml_dtypes, "float8_e8m0fnu"):  # It came with ml_dtypes 0.5.
    del _CODES["float8_e8m0fnu"]
_DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in _CODES}
_NAMES = {code: name for name, code in _CODES.items()}

NAMES = tuple(_CODES)
"""Every supported element type, by its NumPy name."""


def dtype_of(name: str) -> np.dtype[Any]:
    """Returns the NumPy type of that name; raises `ValueError` if a checkpoint cannot hold it."""
    try:
        return _DTYPES[name]
    except (KeyError, TypeError):
        raise ValueError(
            f"Expected an element type out of {', '.join(NAMES)}. Received: {name!r}. "
            "Convert the variable, or keep it out of the checkpoint."
        ) from None


def code_of(name: str) -> str:
    """Returns the safetensors code of a NumPy type name; raises like `dtype_of`."""
    dtype_of(name)
    return _CODES[name]


def name_of_code(code: object) -> str | None:
    """Returns the NumPy name of a safetensors code, None if it is not supported."""
    return _NAMES.get(code) if isinstance(code, str) else None
