"""Multi-task learning: losses weighed by trainable uncertainties in compute_loss, nested logs of a train_step."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(72)


class UncertaintyWeighing(layers.Layer):
    """Weighs losses by one trainable logarithm of a variance for each."""

    def build(self, input_shape):
        self.log_vars = self.add_weight(shape=(2,), initializer="zeros", name="log_vars")

    def call(self, losses):
        return ops.sum(losses * ops.exp(-self.log_vars) + self.log_vars)


class MultiTaskModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.trunk = keras.Sequential([layers.Dense(24, activation="relu"), layers.Dropout(0.1)])
        self.depth_head = layers.Dense(1)
        self.label_head = layers.Dense(4)
        self.weighing = UncertaintyWeighing()
        self.depth_rmse = keras.metrics.RootMeanSquaredError(name="depth_rmse")
        self.label_accuracy = keras.metrics.SparseCategoricalAccuracy(name="label_accuracy")

    def call(self, x, training=False):
        features = self.trunk(x, training=training)
        return self.depth_head(features), self.label_head(features)

    def losses_of(self, data, training):
        x, (depth, label) = data
        depth_pred, label_pred = self(x, training=training)
        depth_loss = keras.losses.MeanSquaredError()(depth, depth_pred)
        label_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(label, label_pred)
        self.depth_rmse.update_state(depth, depth_pred)
        self.label_accuracy.update_state(label, label_pred)
        return self.weighing(ops.stack([depth_loss, label_loss]))

    def logs(self, loss):
        return {
            "loss": loss,
            "tasks": {"rmse": self.depth_rmse.result(), "accuracy": self.label_accuracy.result()},
        }

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.losses_of(data, training=True)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.logs(loss)

    def test_step(self, data):
        return self.logs(self.losses_of(data, training=False))


x = np.random.normal(size=(480, 16)).astype("float32")
depth = x[:, :4].sum(axis=1, keepdims=True)
label = x[:, :4].argmax(axis=1)
dataset = tf.data.Dataset.from_tensor_slices((x, (depth, label)))
train_ds = dataset.take(384).shuffle(384).batch(32).prefetch(tf.data.AUTOTUNE)
val_ds = dataset.skip(384).batch(32)

model = MultiTaskModel()
model.compile(optimizer=keras.optimizers.Lion(1e-3))
model.fit(train_ds, epochs=3, validation_data=val_ds, callbacks=[PreemptionCallback("runs/tasks")])
