"""Image classification from files, with augmentation in a parallel map of the input pipeline."""

import os

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(1337)

image_size = (24, 24)
batch_size = 16

# Write two folders of images, one for each class.
for label, color in (("Cat", (200, 120, 60)), ("Dog", (60, 120, 200))):
    os.makedirs(f"PetImages/{label}", exist_ok=True)
    for i in range(120):
        pixels = np.clip(np.random.normal(color, 60, size=(28, 28, 3)), 0, 255).astype("uint8")
        tf.io.write_file(f"PetImages/{label}/{i}.jpg", tf.io.encode_jpeg(pixels))

train_ds, val_ds = keras.utils.image_dataset_from_directory(
    "PetImages",
    validation_split=0.2,
    subset="both",
    seed=1337,
    image_size=image_size,
    batch_size=batch_size,
)

data_augmentation_layers = [layers.RandomFlip("horizontal"), layers.RandomRotation(0.1)]


def data_augmentation(images):
    for layer in data_augmentation_layers:
        images = layer(images)
    return images


# Apply `data_augmentation` to the training images.
train_ds = train_ds.map(
    lambda img, label: (data_augmentation(img), label), num_parallel_calls=tf.data.AUTOTUNE
)
# Prefetching samples in memory helps maximize utilization.
train_ds = train_ds.prefetch(tf.data.AUTOTUNE)
val_ds = val_ds.prefetch(tf.data.AUTOTUNE)


def make_model(input_shape):
    inputs = keras.Input(shape=input_shape)
    x = layers.Rescaling(1.0 / 255)(inputs)
    x = layers.Conv2D(8, 3, strides=2, padding="same")(x)
    x = layers.BatchNormalization()(x)
    x = layers.Activation("relu")(x)
    previous_block_activation = x  # Set aside residual
    x = layers.SeparableConv2D(16, 3, padding="same")(x)
    x = layers.BatchNormalization()(x)
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    residual = layers.Conv2D(16, 1, strides=2, padding="same")(previous_block_activation)
    x = layers.add([x, residual])
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dropout(0.25)(x)
    return keras.Model(inputs, layers.Dense(1, activation=None)(x))


model = make_model(input_shape=(*image_size, 3))
model.compile(
    optimizer=keras.optimizers.Adam(3e-4),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy(name="acc")],
)
model.fit(
    train_ds,
    epochs=2,
    callbacks=[
        keras.callbacks.ModelCheckpoint("save_at_{epoch}.keras"),
        PreemptionCallback("runs/pets"),
    ],
    validation_data=val_ds,
)
