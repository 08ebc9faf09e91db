"""What makes a checkpoint directory belong to a run: its model, its optimizer, its input."""

from __future__ import annotations

import uuid
from typing import Any

import keras
import tensorflow as tf

from keras_preempt.backend.keras.internals import InputFeed, RunningFit, builds_before_evaluating
from keras_preempt.backend.tensorflow.internals import batch_size
from keras_preempt.checkpoint.documents import FORMAT
from keras_preempt.checkpoint.other_workers import Setup
from keras_preempt.state.model import ELSEWHERE, ModelState


def describe(
    model: keras.Model,
    model_state: ModelState,
    fit: RunningFit,
    setup: Setup,
    begun_after: str | None = None,
) -> dict[str, Any]:
    """Returns the identity that `checkpoint.identity` keeps in run.json and compares at every start.

    `epochs` is not part of it: a finished run may be given more. The setup is kept as well, but another number of
    workers or replicas is no other run. Of a model that makes variables only while it trains, those are described that
    exist, and the description says that it is not complete.

    Args:
        model: The model that is fitted.
        model_state: Its variables.
        fit: Its running fit.
        setup: What it trains on.
        begun_after: How the fit before this one in the directory ended; None if there was none.
    """
    # What the model does not hold is no part of what it is.
    variables = [v for v in model_state.signature() if not v["name"].startswith(f"{ELSEWHERE}/")]
    return {
        "format": FORMAT,
        "run_id": uuid.uuid4().hex,
        "model": [v for v in variables if not v["name"].startswith("optimizer/")],
        "optimizer": [v for v in variables if v["name"].startswith("optimizer/")],
        **({} if model_state.complete else {"complete": False}),
        "optimizer_class": type(model.optimizer).__name__,
        "setup": setup.to_json(),
        "config": {
            "steps_per_execution": fit.feed.steps_per_execution,
            "input": str(_samples_of(fit.feed.element_spec)),
            **({} if begun_after is None else {"begun after": begun_after}),
        },
    }


def setup_of(model: keras.Model, feed: InputFeed, strategy: tf.distribute.Strategy, workers: int) -> Setup:
    """Returns what a fit trains on.

    Args:
        model: The model that is fitted.
        feed: Its training input, as fit has made it.
        strategy: The strategy that it trains under.
        workers: How many processes take part.
    """
    return Setup(
        workers=workers,
        replicas=int(strategy.num_replicas_in_sync),
        global_batch=_global_batch(feed),
        batches=feed.batches,
        built_from=int(builds_before_evaluating(model)),
    )


def _global_batch(feed: InputFeed) -> int | None:
    if feed.undistributed is None:
        return feed.batch_size
    # What the shape of a batch says is certain; a map behind the batching hides it from TensorFlow.
    leaves = tf.nest.flatten(feed.undistributed.element_spec, expand_composites=True)
    sizes = {leaf.shape[0] for leaf in leaves if isinstance(leaf, tf.TensorSpec) and leaf.shape.rank}
    if len(sizes) == 1 and (size := sizes.pop()) is not None:
        return int(size)
    return batch_size(feed.undistributed)


def _samples_of(element_spec: Any) -> Any:
    """What one sample looks like: the element of a dataset without its size, whatever replicas it is cut for."""

    def leaf(spec: Any) -> list[tuple[str, list[int | None]]]:
        flat = tf.nest.flatten(spec, expand_composites=True)
        components = [component for component in flat if isinstance(component, tf.TensorSpec)]
        # A batch that is cut for several replicas has each tensor once for every replica.
        alike = {(c.dtype.name, tuple(c.shape[1:]) if c.shape.rank else ()) for c in components}
        return [(name, list(shape)) for name, shape in sorted(alike, key=repr)]

    return tf.nest.map_structure(leaf, element_spec)
