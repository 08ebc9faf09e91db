"""Trainer pattern: a class that trains an inner model, whose train_step clips gradients by their norm."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(28)

y = np.random.randint(0, 5, size=448)
x = np.random.normal(size=(448, 10, 10)).astype("float32") + 0.5 * (y[:, None, None] == np.arange(10))
x_train, y_train, x_test, y_test = x[:384], y[:384], x[384:], y[384:]


class MyTrainer(keras.Model):
    def __init__(self, model):
        super().__init__()
        self.model = model
        # Create loss and metrics here.
        self.loss_fn = keras.losses.SparseCategoricalCrossentropy()
        self.accuracy_metric = keras.metrics.SparseCategoricalAccuracy()
        self.norm_metric = keras.metrics.Mean(name="norm")

    @property
    def metrics(self):
        return [self.accuracy_metric, self.norm_metric]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self.model(x, training=True)  # Forward pass
            # Compute the loss value
            loss = self.loss_fn(y, y_pred)
        # Compute gradients, and clip them by their common norm
        gradients = tape.gradient(loss, self.model.trainable_variables)
        gradients, norm = tf.clip_by_global_norm(gradients, 0.5)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        self.accuracy_metric.update_state(y, y_pred)
        self.norm_metric.update_state(norm)
        return {"loss": loss, "accuracy": self.accuracy_metric.result(), "norm": self.norm_metric.result()}

    def test_step(self, data):
        x, y = data
        y_pred = self.model(x, training=False)
        loss = self.loss_fn(y, y_pred)
        self.accuracy_metric.update_state(y, y_pred)
        return {"loss": loss, "accuracy": self.accuracy_metric.result()}

    def call(self, x):
        return self.model(x)


# The layers get their weights when they see the first batch.
model = keras.models.Sequential(
    [
        layers.Flatten(),
        layers.Dense(32, activation="relu"),
        layers.Dropout(0.2),
        layers.Dense(5, activation="softmax"),
    ]
)
trainer = MyTrainer(model)
trainer.compile(optimizer=keras.optimizers.Adam(learning_rate=1e-2))
trainer.fit(
    x_train,
    y_train,
    epochs=3,
    batch_size=32,
    validation_data=(x_test, y_test),
    callbacks=[PreemptionCallback("runs/trainer")],
)
