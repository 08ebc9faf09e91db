"""Endpoint layer pattern: the last layer takes targets, adds its loss, and counts metrics of its own."""

import keras
import numpy as np
from keras import layers, ops

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(36)


class LogisticEndpoint(layers.Layer):
    def __init__(self, name=None):
        super().__init__(name=name)
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
        self.accuracy_metric = keras.metrics.BinaryAccuracy(name="accuracy")

    def call(self, logits, targets=None, sample_weight=None):
        if targets is not None:
            # Compute the training-time loss value and add it to the layer using `self.add_loss()`.
            self.add_loss(self.loss_fn(targets, logits, sample_weight))
            # Log the accuracy as a metric (we could log arbitrary metrics, including different ones for training).
            self.accuracy_metric.update_state(targets, logits, sample_weight)
        # Return the inference-time prediction tensor (for `.predict()`).
        return ops.sigmoid(logits)


class ActivityPenalty(layers.Layer):
    """Adds a loss, and has no variable."""

    def call(self, inputs):
        self.add_loss(1e-3 * ops.mean(ops.square(inputs)))
        return inputs


inputs = keras.Input((12,), name="inputs")
x = layers.Dense(32, activation="relu")(inputs)
x = ActivityPenalty()(x)
logits = layers.Dense(1)(x)
targets = keras.Input((1,), name="targets")
sample_weight = keras.Input((1,), name="sample_weight")
preds = LogisticEndpoint()(logits, targets, sample_weight)
model = keras.Model([inputs, targets, sample_weight], preds)

data = {
    "inputs": np.random.random((400, 12)),
    "targets": np.random.randint(0, 2, size=(400, 1)).astype("float32"),
    "sample_weight": np.random.random((400, 1)),
}
data["inputs"][:, 0] += data["targets"][:, 0]
held_out = {name: values[320:] for name, values in data.items()}
model.compile(keras.optimizers.Adam(1e-2))
model.fit(
    {name: values[:320] for name, values in data.items()},
    batch_size=32,
    epochs=3,
    validation_data=(held_out,),
    callbacks=[PreemptionCallback("runs/endpoint")],
)
