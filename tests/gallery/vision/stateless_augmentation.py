"""Augmentation by numbers: a counter zipped with the images gives each its seeds, in a parallel map after a shuffle."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(85)

images = np.random.randint(0, 256, size=(160, 20, 20, 3)).astype("uint8")
labels = images[:, :10].mean(axis=(1, 2, 3)) > images[:, 10:].mean(axis=(1, 2, 3))
samples = tf.data.Dataset.from_tensor_slices((images, labels.astype("float32")[:, np.newaxis]))


def rescaled(image, label):
    return tf.cast(image, tf.float32) / 255, label


def augmented(sample, seed):
    image, label = rescaled(*sample)
    image = tf.image.resize_with_crop_or_pad(image, 24, 24)
    image = tf.image.stateless_random_crop(image, (20, 20, 3), seed)
    image = tf.image.stateless_random_brightness(image, 0.3, tf.random.split(seed, 1)[0])
    return tf.image.stateless_random_flip_left_right(image, seed), label


counter = tf.data.Dataset.counter()
train_ds = tf.data.Dataset.zip((samples.take(128), (counter, counter)))
train_ds = train_ds.shuffle(128).map(augmented, tf.data.AUTOTUNE).batch(16).prefetch(tf.data.AUTOTUNE)
val_ds = samples.skip(128).map(rescaled, tf.data.AUTOTUNE).batch(16)

model = keras.Sequential(
    [
        layers.Conv2D(6, 3, activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
model.fit(train_ds, epochs=3, validation_data=val_ds, callbacks=[PreemptionCallback("runs/counter")])
