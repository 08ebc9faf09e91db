"""Cross-validation: a new model for each fold after clear_session, and a callback that all folds share."""

import keras
import numpy as np
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(84)

FOLDS = 3

x = np.random.normal(size=(240, 12)).astype("float32")
y = (np.tanh(x[:, :1]) + 0.5 * x[:, 1:2] ** 2).astype("float32")
fold_of = np.random.permutation(len(x)) % FOLDS

warming_up = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 * min(1.0, (epoch + 1) / 2))
predictions = np.zeros_like(y)
for fold in range(FOLDS):
    keras.backend.clear_session()
    training, held_out = fold_of != fold, fold_of == fold
    model = keras.Sequential(
        [
            layers.Dense(16, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.2),
            layers.Dense(1),
        ]
    )
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    model.fit(
        x[training],
        y[training],
        batch_size=20,
        epochs=2,
        validation_data=(x[held_out], y[held_out]),
        callbacks=[
            warming_up,
            keras.callbacks.ModelCheckpoint(
                f"fold-{fold}.weights.h5", save_best_only=True, save_weights_only=True
            ),
            PreemptionCallback("runs/folds"),
        ],
    )
    model.load_weights(f"fold-{fold}.weights.h5")
    predictions[held_out] = model.predict(x[held_out])
print(f"Error of all folds: {np.abs(predictions - y).mean():.3f}")
