"""Metrics of `compile` that are built early are reset as often as in Keras."""

from __future__ import annotations

import keras
import numpy as np

from keras_preempt.backend.keras import model_parts
from tests.backend.changed import keras_changed

X, Y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")


def compiled(metric: keras.metrics.Metric) -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[metric])
    return model


def test_keras_does_not_reset_metrics_of_compile_before_they_are_built() -> None:
    metric = keras.metrics.MeanAbsoluteError()
    metric.update_state([1.0], [3.0])
    model = compiled(metric)
    changed = keras_changed("metrics of compile that are not built are reset")
    assert not model._compile_metrics.built, changed
    model.reset_metrics()
    assert float(metric.result()) == 2, changed
    model.train_on_batch(X, Y)
    model.reset_metrics()
    assert float(metric.result()) == 0, changed


def test_only_the_first_reset_of_what_was_built_early_is_left_out() -> None:
    metric = keras.metrics.MeanAbsoluteError()
    metric.update_state([1.0], [3.0])
    model = compiled(metric)
    for expected in (2, 0):
        with model_parts.first_reset_left_out(model):
            model._compile_metrics.build(Y, Y)
        model.reset_metrics()
        assert float(metric.result()) == expected


def test_a_restored_model_resets_them_at_once() -> None:
    metric = keras.metrics.MeanAbsoluteError()
    metric.update_state([1.0], [3.0])
    model = compiled(metric)
    with model_parts.first_reset_left_out(model):
        model._compile_metrics.build(Y, Y)
    model_parts.first_reset_is_over(model)
    model.reset_metrics()
    assert float(metric.result()) == 0
    model_parts.first_reset_is_over(keras.Sequential([keras.layers.Dense(1)]))
