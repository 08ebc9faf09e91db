"""Debugging tips: a layer and a train_step that print what they do, run eagerly."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(4)


class MyAntirectifier(layers.Layer):
    def build(self, input_shape):
        output_dim = input_shape[-1]
        self.kernel = self.add_weight(
            shape=(output_dim * 2, output_dim), initializer="he_normal", name="kernel", trainable=True
        )

    def call(self, inputs):
        # Take the positive part of the input
        pos = tf.nn.relu(inputs)
        # Take the negative part of the input
        neg = tf.nn.relu(-inputs)
        # Concatenate the positive and negative parts, and project them
        concatenated = tf.concat([pos, neg], axis=-1)
        return tf.matmul(concatenated, self.kernel)


class MyModel(keras.Model):
    def train_step(self, data):
        inputs, targets = data
        trainable_vars = self.trainable_variables
        with tf.GradientTape() as tape2:
            with tf.GradientTape() as tape1:
                y_pred = self(inputs, training=True)  # Forward pass
                loss = self.compute_loss(y=targets, y_pred=y_pred)
            # Compute first-order gradients
            dl_dw = tape1.gradient(loss, trainable_vars)
        # Compute second-order gradients
        d2l_dw2 = tape2.gradient(dl_dw, trainable_vars)
        # Combine first-order and second-order gradients
        grads = [0.5 * w1 + 0.5 * w2 for (w1, w2) in zip(d2l_dw2, dl_dw, strict=True)]
        if int(self.optimizer.iterations) % 10 == 0:
            print(" norm of gradients", float(tf.linalg.global_norm(grads)))
        self.optimizer.apply_gradients(zip(grads, trainable_vars, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(targets, y_pred)
        return {m.name: m.result() for m in self.metrics}


def get_model():
    inputs = keras.Input(shape=(12, 12))
    x = layers.Rescaling(1.0 / 255)(inputs)
    x = layers.Flatten()(x)
    x = MyAntirectifier()(x)
    x = layers.Dropout(0.2)(x)
    outputs = layers.Dense(4, activation="softmax")(x)
    return MyModel(inputs, outputs)


y_train = np.random.randint(0, 4, size=192)
x_train = np.random.randint(0, 100, size=(192, 12, 12)) + 40 * y_train[:, None, None]

model = get_model()
model.compile(
    optimizer=keras.optimizers.SGD(learning_rate=1e-2),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
    run_eagerly=True,
)
model.fit(
    x_train[:160],
    y_train[:160],
    epochs=3,
    batch_size=16,
    validation_data=(x_train[160:], y_train[160:]),
    callbacks=[PreemptionCallback("runs/debugging")],
)
