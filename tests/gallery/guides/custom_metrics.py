"""Custom losses and metrics: a stateful metric, a loss with an argument, add_metric-like layers, an endless dataset."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(51)


@keras.saving.register_keras_serializable(package="guide")
class CategoricalTruePositives(keras.metrics.Metric):
    def __init__(self, name="categorical_true_positives", **kwargs):
        super().__init__(name=name, **kwargs)
        self.true_positives = self.add_variable(shape=(), name="ctp", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_pred = ops.reshape(ops.argmax(y_pred, axis=1), (-1, 1))
        values = ops.cast(ops.equal(ops.cast(y_true, "int32"), ops.cast(y_pred, "int32")), "float32")
        if sample_weight is not None:
            values = ops.multiply(values, ops.cast(sample_weight, "float32"))
        self.true_positives.assign_add(ops.sum(values))

    def result(self):
        return self.true_positives

    def reset_state(self):
        # The state of the metric will be reset at the start of each epoch.
        self.true_positives.assign(0)


class LossWithPenalty(keras.losses.Loss):
    def __init__(self, penalty=0.1, name="loss_with_penalty"):
        super().__init__(name=name)
        self.penalty = penalty

    def call(self, y_true, y_pred):
        entropy = keras.losses.sparse_categorical_crossentropy(y_true, y_pred)
        return entropy + self.penalty * ops.mean(ops.square(0.5 - y_pred), axis=-1)


class RunningMean(layers.Layer):
    """Centers its input by a running mean, which is a weight that no gradient changes."""

    def build(self, input_shape):
        self.mean = self.add_weight(
            shape=(input_shape[-1],), initializer="zeros", trainable=False, name="mean"
        )

    def call(self, inputs, training=False):
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(inputs, axis=0))
        return inputs - self.mean


y = np.random.randint(0, 4, size=(512, 1))
x = (np.random.normal(size=(512, 12)) + (y == np.arange(12))).astype("float32")
train_dataset = tf.data.Dataset.from_tensor_slices((x[:416], y[:416]))
train_dataset = train_dataset.shuffle(buffer_size=1024).repeat().batch(32)
val_dataset = tf.data.Dataset.from_tensor_slices((x[416:], y[416:])).batch(32)

inputs = keras.Input(shape=(12,), name="digits")
hidden = layers.Dense(16, activation="relu")(RunningMean()(inputs))
outputs = layers.Dense(4, activation="softmax", name="predictions")(layers.GaussianNoise(0.1)(hidden))
model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(
    optimizer=keras.optimizers.RMSprop(learning_rate=1e-3),
    loss=LossWithPenalty(0.2),
    metrics=[CategoricalTruePositives(), "sparse_categorical_accuracy"],
)
model.fit(
    train_dataset,
    epochs=4,
    # Only run 10 batches per epoch (that's 320 samples)
    steps_per_epoch=10,
    validation_data=val_dataset,
    validation_steps=2,
    callbacks=[PreemptionCallback("runs/metrics")],
)
