"""A range test of learning rates, and training with one cycle up to the rate that it has found."""

import keras
import numpy as np
from keras import layers, ops

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(36)

BATCH, EPOCHS = 16, 4

x = np.random.uniform(-1, 1, size=(480, 8)).astype("float32")
y = np.sin(3 * x[:, :1]) + x[:, 1:2] * x[:, 2:3]
steps = int(0.8 * len(x)) // BATCH


def rate_of(model):
    return float(ops.convert_to_numpy(model.optimizer.learning_rate))


class RangeTest(keras.callbacks.Callback):
    """Raises the rate after each batch by the same factor, and collects the loss of the batch."""

    def __init__(self, low, high, batches):
        super().__init__()
        self.low = low
        self.factor = (high / low) ** (1 / batches)
        self.found = []

    def on_train_begin(self, logs=None):
        self.model.optimizer.learning_rate = self.low

    def on_epoch_begin(self, epoch, logs=None):
        self.total = 0.0

    def on_train_batch_end(self, batch, logs=None):
        total = logs["loss"] * (batch + 1)  # Keras gives the mean of the epoch so far.
        self.found.append((rate_of(self.model), total - self.total))
        self.total = total
        self.model.optimizer.learning_rate = rate_of(self.model) * self.factor


class OneCycle(keras.callbacks.Callback):
    """Raises the rate in even steps for the first half of training, and lowers it in the second."""

    def __init__(self, peak, batches):
        super().__init__()
        self.peak = peak
        self.batches = batches
        self.done = 0

    def on_train_batch_begin(self, batch, logs=None):
        way = abs(2 * self.done / self.batches - 1)
        self.model.optimizer.learning_rate = self.peak * (1 - 0.95 * way)
        self.done += 1


model = keras.Sequential(
    [keras.Input((8,)), layers.Dense(32, activation="tanh"), layers.Dropout(0.05), layers.Dense(1)]
)
model.compile(optimizer=keras.optimizers.SGD(momentum=0.9), loss="mse")
initial_weights = model.get_weights()

range_test = RangeTest(1e-4, 1.0, 2 * steps)
model.fit(
    x[: steps * BATCH],
    y[: steps * BATCH],
    batch_size=BATCH,
    epochs=2,
    callbacks=[range_test, PreemptionCallback("runs/range_test")],
)
rates, losses = np.transpose(range_test.found)
smooth = np.convolve(losses, np.ones(5) / 5, mode="same")[2:-2]
peak = float(rates[2 + np.argmin(np.where(np.isnan(smooth), np.inf, smooth))]) / 4
print(f"Training with rates up to {peak:.4f}")

model.set_weights(initial_weights)
model.compile(optimizer=keras.optimizers.SGD(momentum=0.9), loss="mse", metrics=["mae"])
model.fit(
    x,
    y,
    batch_size=BATCH,
    epochs=EPOCHS,
    validation_split=0.2,
    callbacks=[OneCycle(peak, EPOCHS * steps), PreemptionCallback("runs/one_cycle")],
)
