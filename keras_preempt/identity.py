"""What makes a checkpoint directory belong to a run: its model, its optimizer, its input, its cluster."""

from __future__ import annotations

import uuid
from typing import Any

import keras
import tensorflow as tf

from keras_preempt.checkpoint.documents import FORMAT
from keras_preempt.keras_internals import RunningFit
from keras_preempt.state.model import ModelState


def describe(
    model: keras.Model,
    model_state: ModelState,
    fit: RunningFit,
    strategy: tf.distribute.Strategy,
    workers: int,
) -> dict[str, Any]:
    """Returns the identity that `checkpoint.identity` keeps in run.json and compares at every start.

    `epochs` is not part of it: a finished run may be given more.
    """
    variables = model_state.signature()
    return {
        "format": FORMAT,
        "run_id": uuid.uuid4().hex,
        "model": [v for v in variables if not v["name"].startswith("optimizer/")],
        "optimizer": [v for v in variables if v["name"].startswith("optimizer/")],
        "optimizer_class": type(model.optimizer).__name__,
        "config": {
            "workers": workers,
            "replicas": strategy.num_replicas_in_sync,
            "steps_per_execution": fit.feed.steps_per_execution,
            "steps_per_epoch": fit.feed.batches,
            "input": str(fit.feed.element_spec),
        },
    }
