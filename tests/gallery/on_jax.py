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
    "graph/gnn_citations": "its layers are written with operations of TensorFlow",
    "keras_recipes/memory_efficient_embeddings": "its layers are written with operations of TensorFlow",
}
"""Why a script cannot run on JAX, with or without this package."""

OTHERWISE: Mapping[str, Identical | Said] = {}
"""The scripts of which something else is promised."""


def on_jax(script: Script) -> Script | None:
    """Returns a script with its verdict on JAX; None if it is not on JAX."""
    if script.name in NOT_ON_JAX:
        return None
    return replace(script, verdict=OTHERWISE.get(script.name, script.verdict), short=False)
