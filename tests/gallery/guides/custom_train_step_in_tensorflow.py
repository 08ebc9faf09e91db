"""Customizing what happens in fit: losses and metrics at a lower level, sample and class weights, an own test_step."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(1)


class CustomModel(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")
        self.loss_fn = keras.losses.MeanSquaredError()

    def train_step(self, data):
        if len(data) == 3:
            x, y, sample_weight = data
        else:
            sample_weight = None
            x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)  # Forward pass
            loss = self.loss_fn(y, y_pred, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        self.loss_tracker.update_state(self.loss_fn(y, y_pred))
        self.mae_metric.update_state(y, y_pred)
        # `tests` has a dictionary of its own.
        return {"loss": self.loss_tracker.result(), "tests": {"mae": self.mae_metric.result()}}

    @property
    def metrics(self):
        # We list our `Metric` objects here so that `reset_states()` can be called automatically each epoch.
        return [self.loss_tracker, self.mae_metric]


inputs = keras.Input(shape=(16,))
x = layers.Dense(16, activation="relu")(inputs)
outputs = layers.Dense(1)(layers.Dropout(0.1)(x))
model = CustomModel(inputs, outputs)
model.compile(optimizer="adam")

x = np.random.random((600, 16))
y = np.sum(x, axis=1, keepdims=True) + np.random.normal(0, 0.1, size=(600, 1))
sw = np.random.random((480, 1))
model.fit(
    x[:480],
    y[:480],
    sample_weight=sw,
    epochs=3,
    validation_data=(x[480:], y[480:]),
    callbacks=[PreemptionCallback("runs/train_step")],
)
