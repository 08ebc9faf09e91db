"""Annealing of a loss: a variable of the script weighs the divergence of a VAE, and a callback raises it by epochs."""

import keras
import numpy as np
from keras import layers, ops

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(32)

WIDTH, LATENT, WARM_UP = 24, 3, 3

beta = keras.Variable(0.0, trainable=False, dtype="float32", name="beta")


class RaiseBeta(keras.callbacks.Callback):
    """Leaves the weight at zero for the first epoch, and then raises it in equal steps to one."""

    def __init__(self, weight, epochs):
        super().__init__()
        self.weight = weight
        self.epochs = epochs

    def on_epoch_end(self, epoch, logs=None):
        self.weight.assign(min(1.0, (epoch + 1) / self.epochs))
        print(f"The divergence now counts {float(ops.convert_to_numpy(self.weight.value)):.2f}.")


class Latent(layers.Layer):
    """Draws from the distribution of the encoder, and adds its divergence from a normal one to the loss."""

    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(32)

    def call(self, mean_and_log_variance):
        mean, log_variance = mean_and_log_variance
        divergence = ops.square(mean) + ops.exp(log_variance) - log_variance - 1
        self.add_loss(beta * 0.5 * ops.mean(ops.sum(divergence, axis=-1)))
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + noise * ops.exp(0.5 * log_variance)


curves = np.linspace(0, 6, WIDTH) * np.random.uniform(0.5, 2, size=(480, 1))
curves = np.sin(curves + np.random.uniform(0, 6, size=(480, 1))).astype("float32")

inputs = keras.Input((WIDTH,))
hidden = layers.Dense(32, activation="relu")(inputs)
code = Latent()([layers.Dense(LATENT)(hidden), layers.Dense(LATENT)(hidden)])
outputs = layers.Dense(WIDTH)(layers.Dense(32, activation="relu")(code))
vae = keras.Model(inputs, outputs)
vae.compile(optimizer=keras.optimizers.Adam(3e-3), loss="mse")
vae.fit(
    curves[:400],
    curves[:400],
    batch_size=20,
    epochs=5,
    validation_data=(curves[400:], curves[400:]),
    callbacks=[RaiseBeta(beta, WARM_UP), PreemptionCallback("runs/annealing")],
)
