"""A stateful GRU on one long sequence: its state outlives a batch, and a callback resets it as an epoch begins."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(82)

SYMBOLS, LENGTH = 12, 15

text = np.random.randint(SYMBOLS, size=650)
text[2::3] = (text[:-2:3] + text[1:-1:3]) % SYMBOLS  # Every third symbol follows from the two before it.


def successive_windows(symbols):
    """One window after the other, in their order, each with the symbols that follow."""
    windows = tf.data.Dataset.from_tensor_slices(symbols).window(
        LENGTH + 1, shift=LENGTH, drop_remainder=True
    )
    windows = windows.flat_map(lambda window: window.batch(LENGTH + 1)).batch(1, drop_remainder=True)
    return windows.map(lambda window: (window[:, :-1], window[:, 1:])).prefetch(1)


class ResetStates(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        for layer in self.model.layers:
            if hasattr(layer, "reset_state"):
                layer.reset_state()


model = keras.Sequential(
    [
        keras.Input(batch_shape=(1, LENGTH)),
        layers.Embedding(SYMBOLS, 8),
        layers.GRU(16, return_sequences=True, stateful=True),
        layers.Dense(SYMBOLS, activation="softmax"),
    ]
)
model.compile(optimizer="nadam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(
    successive_windows(text[:500]),
    epochs=3,
    validation_data=successive_windows(text[500:]),
    callbacks=[ResetStates(), PreemptionCallback("runs/stateful")],
)
