"""What is promised for each script where Keras runs on JAX: as on TensorFlow, but for those named here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.gallery.catalogue import Identical, Said, Script

_TAPE = "its training step is written with `tf.GradientTape`"

NOT_ON_JAX: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "generative/conditional_gan",
            "generative/cyclegan",
            "generative/dcgan_overriding_train_step",
            "generative/ddim",
            "generative/vae",
            "generative/wgan_gp",
            "guides/custom_train_step_in_tensorflow",
            "guides/gradient_accumulation",
            "guides/multi_task",
            "keras_recipes/debugging_tips",
            "keras_recipes/trainer_pattern",
            "vision/masked_image_modeling",
            "vision/metric_learning",
            "vision/semisupervised_simclr",
            "vision/siamese_network",
        ),
        _TAPE,
    ),
    **dict.fromkeys(
        (
            "generative/text_generation_with_miniature_gpt",
            "nlp/neural_machine_translation_with_transformer",
            "nlp/text_classification_from_scratch",
        ),
        "there `TextVectorization` with a `standardize` of one's own cannot be called in tf.data",
    ),
    "structured_data/structured_data_classification_with_feature_space": (
        "it trains there, and then predicts with a model that takes strings, of which JAX has none"
    ),
    "structured_data/wide_deep_cross_networks": "its model takes strings, of which JAX has none",
    "keras_recipes/endpoint_layer_pattern": "Keras itself fails in a layer that updates a metric with its targets",
    "guides/custom_metrics": "the result of its metric is a variable, and JAX needs the value",
    "vision/progressive_unfreezing": "Keras itself fails there in the first step after layers became trainable",
    "graph/gnn_citations": "its layers are written with operations of TensorFlow",
    "keras_recipes/memory_efficient_embeddings": "its layers are written with operations of TensorFlow",
}
"""Why a script cannot run on JAX, with or without this package."""

OTHERWISE: Mapping[str, Identical | Said] = {
    "generative/kl_annealing": Said("if the training step reads it: .*in RaiseBeta"),
}
"""The scripts of which something else is promised."""


def on_jax(script: Script) -> Script | None:
    """Returns a script with its verdict on JAX; None if it is not on JAX."""
    if script.name in NOT_ON_JAX:
        return None
    return replace(script, verdict=OTHERWISE.get(script.name, script.verdict), short=False)
