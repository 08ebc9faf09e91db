"""Tabular data from a PyDataset that reads shards of files, shuffles between epochs and balances classes."""

import math
import os

import keras
import numpy as np
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(8)

# Write the table as shards, as an export from a warehouse has them.
os.makedirs("shards", exist_ok=True)
for number in range(6):
    table = np.random.normal(size=(80, 6)).astype("float32")
    np.savez(f"shards/{number}.npz", x=table, y=(table[:, 0] * table[:, 1] > 0).astype("float32"))


class Shards(keras.utils.PyDataset):
    def __init__(self, paths, batch_size, shuffle=False, **kwargs):
        super().__init__(**kwargs)
        loaded = [np.load(path) for path in paths]
        self.x = np.concatenate([shard["x"] for shard in loaded])
        self.y = np.concatenate([shard["y"] for shard in loaded])
        self.batch_size = batch_size
        self.order = np.arange(len(self.x))
        if shuffle:
            self.order = np.random.permutation(self.order)

    def __len__(self):
        return math.ceil(len(self.x) / self.batch_size)

    def __getitem__(self, idx):
        chosen = self.order[idx * self.batch_size : (idx + 1) * self.batch_size]
        weights = np.where(self.y[chosen] > 0, 1.0, 0.8).astype("float32")
        return self.x[chosen], self.y[chosen], weights


paths = sorted(os.path.join("shards", name) for name in os.listdir("shards"))
train = Shards(paths[:5], batch_size=32, shuffle=True, workers=2)
val = Shards(paths[5:], batch_size=16)

normalizer = layers.Normalization()
normalizer.adapt(train.x)
inputs = keras.Input(shape=(6,))
x = normalizer(inputs)
for units in (32, 16):
    x = layers.Dense(units, activation="swish", kernel_regularizer=keras.regularizers.L2(1e-4))(x)
    x = layers.BatchNormalization()(x)
    x = layers.Dropout(0.2)(x)
model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
schedule = keras.optimizers.schedules.CosineDecay(0.01, decay_steps=52)
model.compile(
    optimizer=keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True),
    loss="binary_crossentropy",
    weighted_metrics=["accuracy"],
)
model.fit(
    train,
    epochs=4,
    validation_data=val,
    callbacks=[
        keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
        PreemptionCallback("runs/tabular"),
    ],
)
