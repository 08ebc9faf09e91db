"""Moving averages of the weights: swapped in for validations, and in the second fit for the file of the best epoch."""

import keras
import numpy as np
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(83)

x = np.random.normal(size=(320, 10)).astype("float32")
y = (x[:, :1] * x[:, 1:2] + 0.1 * np.random.normal(size=(320, 1))).astype("float32")

model = keras.Sequential([layers.Dense(24, activation="relu"), layers.Dropout(0.1), layers.Dense(1)])


def fit(epochs, callbacks):
    model.compile(
        optimizer=keras.optimizers.SGD(0.02, momentum=0.9, use_ema=True, ema_momentum=0.9),
        loss="mse",
        metrics=["mae"],
    )
    callbacks = [*callbacks, PreemptionCallback("runs/averages")]
    model.fit(x, y, batch_size=20, epochs=epochs, validation_split=0.25, callbacks=callbacks)


fit(2, [keras.callbacks.SwapEMAWeights()])
fit(
    3,
    [
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
        keras.callbacks.ModelCheckpoint("averages.keras", monitor="val_mae", save_best_only=True),
    ],
)
