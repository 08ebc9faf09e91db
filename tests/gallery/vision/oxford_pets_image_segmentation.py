"""Image segmentation with a U-Net-like model: files and masks read in a tf.data map, ModelCheckpoint."""

import os
import random

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(1337)

input_dir, target_dir = "images/", "annotations/trimaps/"
img_size, num_classes, batch_size = (16, 16), 3, 8

# Write images of a bright square, and where it is as a mask: 1 = inside, 2 = outside, 3 = its edge.
os.makedirs(input_dir, exist_ok=True)
os.makedirs(target_dir, exist_ok=True)
for i in range(112):
    top, left = np.random.randint(2, 8, size=2)
    mask = np.full((16, 16, 1), 2, "uint8")
    mask[top - 1 : top + 7, left - 1 : left + 7] = 3
    mask[top : top + 6, left : left + 6] = 1
    image = np.random.randint(0, 120, (16, 16, 3)) + 100 * (mask == 1)
    tf.io.write_file(f"{input_dir}{i:03d}.png", tf.io.encode_png(image.astype("uint8")))
    tf.io.write_file(f"{target_dir}{i:03d}.png", tf.io.encode_png(mask))
input_img_paths = sorted(input_dir + name for name in os.listdir(input_dir))
target_img_paths = sorted(target_dir + name for name in os.listdir(target_dir))


def get_dataset(batch_size, img_size, input_img_paths, target_img_paths):
    """Returns a TF Dataset."""

    def load_img_masks(input_img_path, target_img_path):
        input_img = tf.io.decode_png(tf.io.read_file(input_img_path), channels=3)
        input_img = tf.image.resize(input_img, img_size)
        target_img = tf.io.decode_png(tf.io.read_file(target_img_path), channels=1)
        target_img = tf.image.resize(target_img, img_size, method="nearest")
        # Ground truth labels are 1, 2, 3. Subtract one to make them 0, 1, 2:
        return tf.image.convert_image_dtype(input_img, "float32"), tf.cast(target_img, "uint8") - 1

    dataset = tf.data.Dataset.from_tensor_slices((input_img_paths, target_img_paths))
    return dataset.map(load_img_masks, num_parallel_calls=tf.data.AUTOTUNE).batch(batch_size)


def get_model(img_size, num_classes):
    inputs = keras.Input(shape=(*img_size, 3))
    x = layers.Conv2D(8, 3, strides=2, padding="same")(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.Activation("relu")(x)
    previous_block_activation = x  # Set aside residual
    for filters in [16, 24]:
        x = layers.Activation("relu")(x)
        x = layers.SeparableConv2D(filters, 3, padding="same")(x)
        x = layers.BatchNormalization()(x)
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
        residual = layers.Conv2D(filters, 1, strides=2, padding="same")(previous_block_activation)
        x = layers.add([x, residual])
        previous_block_activation = x
    for filters in [24, 16, 8]:
        x = layers.Activation("relu")(x)
        x = layers.Conv2DTranspose(filters, 3, padding="same")(x)
        x = layers.BatchNormalization()(x)
        x = layers.UpSampling2D(2)(x)
        residual = layers.UpSampling2D(2)(previous_block_activation)
        residual = layers.Conv2D(filters, 1, padding="same")(residual)
        x = layers.add([x, residual])
        previous_block_activation = x
    outputs = layers.Conv2D(num_classes, 3, activation="softmax", padding="same")(x)
    return keras.Model(inputs, outputs)


model = get_model(img_size, num_classes)

# Split our img paths into a training and a validation set
val_samples = 32
random.Random(1337).shuffle(input_img_paths)
random.Random(1337).shuffle(target_img_paths)
train_dataset = get_dataset(
    batch_size, img_size, input_img_paths[:-val_samples], target_img_paths[:-val_samples]
)
valid_dataset = get_dataset(
    batch_size, img_size, input_img_paths[-val_samples:], target_img_paths[-val_samples:]
)

model.compile(optimizer=keras.optimizers.Adam(1e-4), loss="sparse_categorical_crossentropy")
callbacks = [
    keras.callbacks.ModelCheckpoint("oxford_segmentation.keras", save_best_only=True),
    PreemptionCallback("runs/segmentation"),
]
model.fit(train_dataset, epochs=3, validation_data=valid_dataset, callbacks=callbacks, verbose=2)
val_preds = model.predict(valid_dataset, verbose=0)
print("predicted masks", np.argmax(val_preds, axis=-1).shape)
