"""Gradient accumulation by hand: a train_step that adds up gradients, and applies them at every fourth batch."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(33)


class AccumulatingModel(keras.Model):
    """Trains as if batches were larger than memory allows."""

    def __init__(self, *args, batches=4, **kwargs):
        super().__init__(*args, **kwargs)
        self.batches = batches
        self.seen = tf.Variable(0, trainable=False)
        self.sums = [tf.Variable(tf.zeros(v.shape), trainable=False) for v in self.trainable_variables]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        for total, gradient in zip(self.sums, gradients, strict=True):
            total.assign_add(gradient / self.batches)
        self.seen.assign_add(1)
        tf.cond(self.seen == self.batches, self.apply_sums, lambda: None)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
        return self.compute_metrics(x, y, predicted)

    def apply_sums(self):
        gradients = [tf.convert_to_tensor(total) for total in self.sums]
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for total in self.sums:
            total.assign(tf.zeros_like(total))
        self.seen.assign(0)


x = np.random.normal(size=(600, 12)).astype("float32")
y = np.argmax(x[:, :3] + 0.2 * np.random.normal(size=(600, 3)), axis=1)

inputs = keras.Input((12,))
hidden = layers.Dropout(0.1)(layers.Dense(32, activation="relu")(inputs))
model = AccumulatingModel(inputs, layers.Dense(3, activation="softmax")(hidden))
model.compile(
    optimizer=keras.optimizers.Adam(0.01), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
)
model.optimizer.build(model.trainable_variables)  # Not within tf.cond, where no variable can be made.
# 54 batches: the last two of an epoch wait for the first two of the next.
model.fit(
    x, y, batch_size=10, epochs=3, validation_split=0.1, callbacks=[PreemptionCallback("runs/accumulation")]
)
