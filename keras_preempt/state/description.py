"""The identity of a run, to which a checkpoint directory belongs: its model, its optimizer, its input."""

from __future__ import annotations

import uuid
from typing import Any

import keras

from keras_preempt.backend.keras.running_fit import RunningFit
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.documents import FORMAT
from keras_preempt.checkpoint.identity import NAMED
from keras_preempt.checkpoint.setup import Setup
from keras_preempt.state.model import ELSEWHERE, ModelState


def identity_of_run(
    model: keras.Model,
    model_state: ModelState,
    fit: RunningFit,
    setup: Setup,
    begun_after: str | None = None,
) -> dict[str, Any]:
    """Returns the identity that `checkpoint.identity` keeps in run.json and compares at every start.

    `epochs` is not part of it: a finished run may be given more. The setup is kept as well, but another number of
    workers or replicas is still the same run. Of a model that makes variables only while it trains, the existing ones
    are described, and the description says that it is not complete. `begun_after` is how the fit before this one in
    the directory ended; None if there was none.
    """
    # Variables that the model does not hold are not part of it.
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
            "input": fit.feed.sample,
            **({NAMED: name} if (name := backend().named_in_runs) else {}),
            **({} if begun_after is None else {"begun after": begun_after}),
        },
    }
