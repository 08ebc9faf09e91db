"""Image super-resolution with an efficient sub-pixel CNN: a callback predicts each epoch, EarlyStopping."""

import math
import os

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(1337)

crop_size, upscale_factor, batch_size = 24, 3, 8
input_size = crop_size // upscale_factor
root_dir = "BSR/train"

os.makedirs(root_dir, exist_ok=True)
for i in range(100):
    coarse = np.random.randint(0, 255, size=(4, 4, 3))
    image = tf.image.resize(coarse, (26, 26), method="bicubic")
    tf.io.write_file(
        f"{root_dir}/{i:03d}.png", tf.io.encode_png(tf.cast(tf.clip_by_value(image, 0, 255), "uint8"))
    )

arguments = {
    "batch_size": batch_size,
    "image_size": (crop_size, crop_size),
    "validation_split": 0.2,
    "seed": 1337,
    "label_mode": None,
}
train_ds = keras.utils.image_dataset_from_directory(root_dir, subset="training", **arguments)
valid_ds = keras.utils.image_dataset_from_directory(root_dir, subset="validation", **arguments)


def scaling(input_image):
    return input_image / 255.0


def process_target(image):
    image = tf.image.rgb_to_yuv(image)
    return tf.split(image, 3, axis=len(image.shape) - 1)[0]


def process_input(image):
    return tf.image.resize(process_target(image), [input_size, input_size], method="area")


train_ds = train_ds.map(scaling).map(lambda x: (process_input(x), process_target(x)))
train_ds = train_ds.prefetch(buffer_size=32)
valid_ds = valid_ds.map(scaling).map(lambda x: (process_input(x), process_target(x)))
valid_ds = valid_ds.prefetch(buffer_size=32)


class DepthToSpace(layers.Layer):
    def __init__(self, block_size):
        super().__init__()
        self.block_size = block_size

    def call(self, input):
        batch, height, width, depth = ops.shape(input)
        depth = depth // (self.block_size**2)
        x = ops.reshape(input, [batch, height, width, self.block_size, self.block_size, depth])
        x = ops.transpose(x, [0, 1, 3, 2, 4, 5])
        return ops.reshape(x, [batch, height * self.block_size, width * self.block_size, depth])


def get_model(upscale_factor=3, channels=1):
    conv_args = {"activation": "relu", "kernel_initializer": "orthogonal", "padding": "same"}
    inputs = keras.Input(shape=(None, None, channels))
    x = layers.Conv2D(16, 5, **conv_args)(inputs)
    x = layers.Conv2D(8, 3, **conv_args)(x)
    x = layers.Conv2D(channels * (upscale_factor**2), 3, **conv_args)(x)
    return keras.Model(inputs, DepthToSpace(upscale_factor)(x))


class ESPCNCallback(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.test_img = next(iter(valid_ds.take(1)))[0][:1]

    def on_epoch_begin(self, epoch, logs=None):
        self.psnr = []  # Store PSNR value in each epoch.

    def on_epoch_end(self, epoch, logs=None):
        print(f"Mean PSNR for epoch: {np.mean(self.psnr):.2f}")
        print("restored", self.model.predict(self.test_img, verbose=0).shape)

    def on_test_batch_end(self, batch, logs=None):
        self.psnr.append(10 * math.log10(1 / logs["loss"]))


model = get_model(upscale_factor=upscale_factor)
early_stopping_callback = keras.callbacks.EarlyStopping(monitor="loss", patience=10)
model_checkpoint_callback = keras.callbacks.ModelCheckpoint(
    filepath="checkpoint.keras", save_weights_only=False, monitor="loss", mode="min", save_best_only=True
)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.001), loss=keras.losses.MeanSquaredError())
model.fit(
    train_ds,
    epochs=3,
    callbacks=[
        ESPCNCallback(),
        early_stopping_callback,
        model_checkpoint_callback,
        PreemptionCallback("runs/espcn"),
    ],
    validation_data=valid_ds,
    verbose=2,
)
