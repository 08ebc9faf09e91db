"""The first reset of the metrics of `compile`, which Keras leaves out.

Keras resets them when an epoch or a validation begins, but not before they are built, which happens in the first step
on one device. So a metric object that an earlier model has used begins its first epoch with what it counted there.
Where the step is traced early they are built early, and would be reset once more than in Keras.

Verified with Keras 3.8.0 to 3.15.1; `tests/backend/keras/test_first_reset.py` has the canary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def left_out(model: Any) -> Iterator[None]:
    """Has the next reset of metrics left out that the block builds.

    Args:
        model: A compiled model.
    """
    metrics = getattr(model, "_compile_metrics", None)
    built = metrics is None or metrics.built
    try:
        yield
    finally:
        if metrics is not None and metrics.built and not built:
            vars(metrics)["reset_state"] = lambda: back(model)


def back(model: Any) -> None:
    """No reset is left out any more: the metrics have been through their first one."""
    metrics = getattr(model, "_compile_metrics", None)
    if metrics is not None:
        vars(metrics).pop("reset_state", None)
