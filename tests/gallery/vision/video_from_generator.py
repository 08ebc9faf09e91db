"""Clips of videos from a Python generator, cached in memory: the frames of each are read once, for all epochs."""

import pathlib

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(37)

FRAMES, SIDE, STRIDE = 4, 10, 3
KINDS = ("falls", "rises")

# Write a file for each video: a bright bar that moves downwards or upwards.
for part, count in (("train", 24), ("val", 8)):
    for kind in KINDS:
        folder = pathlib.Path("videos", part, kind)
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            video = np.random.randint(0, 120, size=(np.random.randint(8, 16), SIDE, SIDE, 1))
            for moment, frame in enumerate(video):
                frame[(moment if kind == "falls" else -1 - moment) % SIDE] += 100
            np.save(folder / f"{number:02}.npy", video.astype("uint8"))


class Clips:
    """Goes through the videos of a part in the order of their names, and takes every third frame."""

    def __init__(self, part):
        self.files = sorted(pathlib.Path("videos", part).glob("*/*.npy"), key=lambda file: file.name)

    def __call__(self):
        for file in self.files:
            frames = np.load(file)[::STRIDE][:FRAMES].astype("float32") / 255
            missing = FRAMES - len(frames)
            yield np.pad(frames, [(0, missing), (0, 0), (0, 0), (0, 0)]), KINDS.index(file.parent.name)


def clips(part):
    signature = (tf.TensorSpec((FRAMES, SIDE, SIDE, 1), tf.float32), tf.TensorSpec((), tf.int32))
    return tf.data.Dataset.from_generator(Clips(part), output_signature=signature).cache()


train_ds = clips("train").shuffle(64).batch(8).prefetch(tf.data.AUTOTUNE)
val_ds = clips("val").batch(8).prefetch(tf.data.AUTOTUNE)

model = keras.Sequential(
    [
        keras.Input((FRAMES, SIDE, SIDE, 1)),
        layers.TimeDistributed(layers.Conv2D(6, 3, strides=2, activation="relu")),
        layers.TimeDistributed(layers.Flatten()),
        layers.GRU(12),
        layers.Dense(len(KINDS)),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(
    train_ds,
    epochs=4,
    validation_data=val_ds,
    callbacks=[
        keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True),
        PreemptionCallback("runs/clips"),
    ],
)
