"""Compares what two runs of ``scripts/train.py`` ended with, bit by bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


def differences(expected: Path, actual: Path, workers: int) -> list[str]:
    """One line for everything that is not bit-identical; ``expected`` and ``actual`` are output prefixes."""
    found = []
    for worker in range(workers):
        with np.load(f"{expected}.{worker}.npz") as one, np.load(f"{actual}.{worker}.npz") as other:
            for name in sorted({*one.files, *other.files}):
                if name not in one.files or name not in other.files:
                    found.append(f"w{worker} {name}: only in one of the two")
                elif (one[name].dtype, one[name].shape) != (other[name].dtype, other[name].shape):
                    found.append(f"w{worker} {name}: another dtype or shape")
                elif one[name].tobytes() != other[name].tobytes():
                    found.append(
                        f"w{worker} {name}: {one[name].ravel()[:3]} became {other[name].ravel()[:3]}"
                    )
        one_record, other_record = (
            json.loads(Path(f"{prefix}.{worker}.json").read_text()) for prefix in (expected, actual)
        )
        for name in sorted({*one_record, *other_record}):
            if one_record.get(name) != other_record.get(name):
                found.append(f"w{worker} {name}: {one_record.get(name)} became {other_record.get(name)}")
    return found


def assert_identical(expected: Path, actual: Path, workers: int) -> None:
    found = differences(expected, actual, workers)
    assert not found, "not bit-identical:\n" + "\n".join(found[:20])
