"""The scripts of the gallery that use nothing of TensorFlow, where Keras runs on torch. In an environment with torch:

KERAS_BACKEND=torch python -m pytest tests/gallery/test_on_torch.py -m chaos
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gallery.catalogue import SCRIPTS, Said
from tests.gallery.drilled import TIMEOUT, drill

OTHERWISE = {"generative/kl_annealing": Said("RaiseBeta")}

NAMES = (
    "generative/kl_annealing",
    "guides/mixed_precision",
    "guides/writing_your_own_callbacks",
    "keras_recipes/learning_rate_finder",
    "keras_recipes/moving_average_weights",
    "keras_recipes/replay_memory",
    "nlp/addition_rnn",
    "nlp/text_classification_with_transformer",
    "structured_data/collaborative_filtering_for_movielens",
    "structured_data/cross_validation",
    "structured_data/imbalanced_classification",
    "structured_data/tabular_with_py_dataset",
    "timeseries/timeseries_anomaly_detection",
    "timeseries/timeseries_classification_from_scratch",
    "vision/autoencoder",
    "vision/image_classification_with_vision_transformer",
    "vision/knowledge_distillation",
    "vision/mnist_convnet",
    "vision/siamese_contrastive",
    "vision/stochastic_weight_averaging",
)


@pytest.mark.chaos
@pytest.mark.skipif(os.environ.get("KERAS_BACKEND") != "torch", reason="Keras does not run on torch here")
@pytest.mark.timeout(TIMEOUT + 60)
@pytest.mark.parametrize("name", NAMES)
def test_what_the_log_promises_of_a_script_on_torch_is_what_comes_out(name: str, tmp_path: Path) -> None:
    (script,) = [each for each in SCRIPTS if each.name == name]
    script = replace(script, verdict=OTHERWISE.get(name, script.verdict))
    outcome = drill(script, tmp_path, "torch")
    assert not outcome.problems(script), f"{outcome.problems(script)}\n{outcome.output}"


def test_every_name_is_one_of_the_gallery() -> None:
    assert {*NAMES} <= {script.name for script in SCRIPTS}
