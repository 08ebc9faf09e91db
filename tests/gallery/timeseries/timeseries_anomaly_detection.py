"""Anomaly detection with a reconstruction convolutional autoencoder on windows of a series."""

import keras
import numpy as np
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(44)

TIME_STEPS = 24
values = np.sin(np.arange(500) * 2 * np.pi / 24) + np.random.normal(0, 0.1, size=500)
training_value = (values - values.mean()) / values.std()


def create_sequences(values, time_steps=TIME_STEPS):
    """Generated training sequences for use in the model."""
    output = [values[i : (i + time_steps)] for i in range(len(values) - time_steps + 1)]
    return np.stack(output)[..., np.newaxis]


x_train = create_sequences(training_value)
print("Training input shape: ", x_train.shape)

model = keras.Sequential(
    [
        layers.Input(shape=(x_train.shape[1], x_train.shape[2])),
        layers.Conv1D(filters=8, kernel_size=7, padding="same", strides=2, activation="relu"),
        layers.Dropout(rate=0.2),
        layers.Conv1D(filters=4, kernel_size=7, padding="same", strides=2, activation="relu"),
        layers.Conv1DTranspose(filters=4, kernel_size=7, padding="same", strides=2, activation="relu"),
        layers.Dropout(rate=0.2),
        layers.Conv1DTranspose(filters=8, kernel_size=7, padding="same", strides=2, activation="relu"),
        layers.Conv1DTranspose(filters=1, kernel_size=7, padding="same"),
    ]
)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.001), loss="mse")
history = model.fit(
    x_train,
    x_train,
    epochs=4,
    batch_size=32,
    validation_split=0.1,
    callbacks=[
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=5, mode="min"),
        PreemptionCallback("runs/anomaly"),
    ],
)
train_mae_loss = np.mean(np.abs(model.predict(x_train, verbose=0) - x_train), axis=1)
print("Reconstruction error threshold: ", np.max(train_mae_loss))
