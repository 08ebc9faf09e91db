"""Transfer learning: a base model is trained, then frozen under a new head, then fine-tuned: three fits."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(2024)


def load(count, classes):
    y = np.random.randint(0, classes, size=count)
    x = np.random.uniform(0, 120, size=(count, 14, 14, 3))
    x[np.arange(count), 2 * y] += 100
    return x.astype("float32"), y


preemption = PreemptionCallback("runs/transfer")

# A small network stands in for Xception with its weights of ImageNet.
base_model = keras.Sequential(
    [
        keras.Input((14, 14, 3)),
        layers.Conv2D(8, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.Conv2D(16, 3, strides=2, activation="relu"),
        layers.BatchNormalization(),
    ],
    name="base",
)
pretraining = keras.Sequential([base_model, layers.GlobalAveragePooling2D(), layers.Dense(6)])
pretraining.compile(
    optimizer="adam",
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
x, y = load(320, 6)
pretraining.fit(x, y, batch_size=32, epochs=2, validation_split=0.2, callbacks=[preemption])

x, y = load(240, 2)
train_ds = tf.data.Dataset.from_tensor_slices((x[:160], y[:160]))
validation_ds = tf.data.Dataset.from_tensor_slices((x[160:], y[160:]))
train_ds = train_ds.shuffle(160).batch(16).prefetch(tf.data.AUTOTUNE).cache()
validation_ds = validation_ds.batch(16).prefetch(tf.data.AUTOTUNE).cache()

base_model.trainable = False  # Freeze the base model

# Create new model on top
inputs = keras.Input(shape=(14, 14, 3))
x = layers.RandomFlip("horizontal")(inputs)
x = layers.RandomRotation(0.1)(x)
x = layers.Rescaling(scale=1 / 127.5, offset=-1)(x)
# Keep the BatchNormalization layers in inference mode when we unfreeze the base model.
x = base_model(x, training=False)
x = layers.GlobalAveragePooling2D()(x)
x = layers.Dropout(0.2)(x)
outputs = layers.Dense(1)(x)
model = keras.Model(inputs, outputs)

# Train the top layer
model.compile(
    optimizer=keras.optimizers.Adam(),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy()],
)
model.fit(train_ds, epochs=2, validation_data=validation_ds, callbacks=[preemption])

# Unfreeze the base_model and train the entire model end-to-end with a low learning rate.
base_model.trainable = True
model.compile(
    optimizer=keras.optimizers.Adam(1e-5),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy()],
)
model.fit(train_ds, epochs=1, validation_data=validation_ds, callbacks=[preemption])
print("Test dataset evaluation", model.evaluate(validation_ds))
