"""Converts the values of a variable on M replicas into those of N replicas. Pure functions.

The rules, for variables that can differ between replicas:

- values that are alike on all replicas are copied;
- totals, such as those of metrics, are added up and divided again, so that their sum stays;
- statistics that each replica gathers, such as those of BatchNormalization, are averaged;
- everything else (states of random generators, counters) continues on the replica of the same number; replica r beyond
  M begins with the value of replica r modulo M.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from keras_preempt.checkpoint.tensors import Array


class Rule(enum.Enum):
    """How values that differ between replicas are converted."""

    TOTAL = "added up"
    AVERAGE = "averaged"
    FIRST = "taken from the first replica"
    OWN = "taken from replica r modulo the old number"


KEPT, COPIED = "kept as they were", "copied, being alike"


def rule_of(aggregation: str, dtype: DTypeLike, *, seed: bool = False) -> Rule:
    """Returns the rule for a variable with that aggregation: "sum", "mean", "only_first_replica" or "none".

    `seed` says whether it is the state of a generator of random numbers.
    """
    dtype = np.dtype(dtype)
    if not _is_number(dtype) or seed:
        return Rule.OWN
    if aggregation in ("sum", "mean", "only_first_replica"):
        return {"sum": Rule.TOTAL, "mean": Rule.AVERAGE}.get(aggregation, Rule.FIRST)
    # Keras leaves the statistics of its layers without an aggregation.
    return Rule.OWN if _is_whole(dtype) else Rule.AVERAGE


def regroup(values: Sequence[Array], replicas: int, rule: Rule) -> tuple[list[Array], str]:
    """Returns the values of that many replicas, made from those of all replicas before, and how, in words.

    The old values are of one shape and dtype; the `rule` applies if they are not as many and not alike.
    """
    if len(values) == replicas:
        return list(values), KEPT
    if rule is Rule.TOTAL:
        return share(total(values), replicas), rule.value
    if all(value.tobytes() == values[0].tobytes() for value in values):
        return [values[0]] * replicas, COPIED
    if rule is Rule.AVERAGE:
        return [average(values)] * replicas, rule.value
    if rule is Rule.FIRST:
        return [values[0]] * replicas, rule.value
    return [values[replica % len(values)] for replica in range(replicas)], rule.value


def total(values: Sequence[Array]) -> Array:
    """Returns the sum, rounded once to the dtype of the values; whole numbers wrap as theirs do."""
    dtype = values[0].dtype
    wide = np.dtype({"i": np.int64, "u": np.uint64}.get(dtype.kind, np.longdouble))
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.sum(np.stack(values).astype(wide), axis=0)).astype(dtype)


def average(values: Sequence[Array]) -> Array:
    """Returns the mean, rounded once to the dtype of the values; of whole numbers to the nearest one."""
    dtype = values[0].dtype
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.asarray(np.mean(np.stack(values).astype(np.longdouble), axis=0))
        return (np.rint(mean) if _is_whole(dtype) else mean).astype(dtype)


def share(whole: Array, replicas: int) -> list[Array]:
    """Divides a total into parts as equal as the dtype allows, which add up to it exactly in any order.

    Each replica logs the quotient of its own totals while an epoch runs, so that every replica gets some of each:
    with all on the first, the others would begin at nothing. A total that is not finite goes to the first.
    """
    if _is_whole(whole.dtype):
        finite: Array = np.ones(whole.shape, bool)
        units, grain = np.asarray(whole), None
    else:
        # In units of the total's last binary digit the parts are whole numbers no longer than it is.
        with np.errstate(invalid="ignore"):  # A NaN may be a signalling one.
            value = np.asarray(whole, np.float64)
        finite = np.isfinite(value)
        value = np.where(finite, value, 0.0)
        info = ml_dtypes.finfo(whole.dtype)
        exponent = np.frexp(value)[1]
        grain = np.maximum(exponent - info.nmant - 1, info.minexp - info.nmant)
        units = np.ldexp(value, -grain).astype(np.int64)
    each = units // replicas
    rest = units - each * replicas
    parts = []
    for replica in range(replicas):
        part = each + (replica < rest)
        if grain is not None:
            kept = whole if replica == 0 else np.zeros_like(whole)
            part = np.where(finite, np.ldexp(part.astype(np.float64), grain).astype(whole.dtype), kept)
        parts.append(np.asarray(part, whole.dtype).reshape(whole.shape))
    return parts


def _is_number(dtype: np.dtype[Any]) -> bool:
    if dtype.kind in "iuf":
        return True
    try:
        ml_dtypes.finfo(dtype)
    except ValueError:
        return False
    return True


def _is_whole(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu"
