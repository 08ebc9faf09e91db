"""MixUp: two shuffled datasets are zipped and mixed by samples of tf.random.gamma in a map."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(42)

BATCH_SIZE, EPOCHS = 16, 2

y = np.random.randint(0, 4, size=352)
x = np.random.uniform(0, 0.5, size=(352, 12, 12, 1)).astype("float32")
x[np.arange(352), 3 * y] += 0.5
y = keras.utils.to_categorical(y, 4).astype("float32")
x_train, y_train, x_val, y_val = x[:256], y[:256], x[256:], y[256:]

train_ds_one = (
    tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(BATCH_SIZE * 100).batch(BATCH_SIZE)
)
train_ds_two = (
    tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(BATCH_SIZE * 100).batch(BATCH_SIZE)
)
# Because we will be mixing up the images and their corresponding labels, we combine two shuffled datasets.
train_ds = tf.data.Dataset.zip((train_ds_one, train_ds_two))
val_ds = tf.data.Dataset.from_tensor_slices((x_val, y_val)).batch(BATCH_SIZE)


def sample_beta_distribution(size, concentration_0=0.2, concentration_1=0.2):
    gamma_1_sample = tf.random.gamma(shape=[size], alpha=concentration_1)
    gamma_2_sample = tf.random.gamma(shape=[size], alpha=concentration_0)
    return gamma_1_sample / (gamma_1_sample + gamma_2_sample)


def mix_up(ds_one, ds_two, alpha=0.2):
    images_one, labels_one = ds_one
    images_two, labels_two = ds_two
    batch_size = tf.shape(images_one)[0]
    lam = sample_beta_distribution(batch_size, alpha, alpha)
    x_l = tf.reshape(lam, (batch_size, 1, 1, 1))
    y_l = tf.reshape(lam, (batch_size, 1))
    images = images_one * x_l + images_two * (1 - x_l)
    labels = labels_one * y_l + labels_two * (1 - y_l)
    return images, labels


train_ds_mu = train_ds.map(lambda ds_one, ds_two: mix_up(ds_one, ds_two, alpha=0.2))

model = keras.Sequential(
    [
        layers.Input(shape=(12, 12, 1)),
        layers.Conv2D(8, 3, activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(16, activation="relu"),
        layers.Dense(4, activation="softmax"),
    ]
)
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(train_ds_mu, validation_data=val_ds, epochs=EPOCHS, callbacks=[PreemptionCallback("runs/mixup")])
