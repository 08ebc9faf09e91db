"""Convolutional autoencoder for denoising: trained on clean images, then on noisy ones, by the same model."""

import keras
import numpy as np
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(64)


def noise(array):
    """Adds random noise to each image in the supplied array."""
    noise_factor = 0.4
    noisy_array = array + noise_factor * np.random.normal(loc=0.0, scale=1.0, size=array.shape)
    return np.clip(noisy_array, 0.0, 1.0)


data = np.zeros((320, 16, 16, 1), "float32")
for image in data:
    top, left = np.random.randint(0, 10, size=2)
    image[top : top + 5, left : left + 5] = 1.0
train_data, test_data = data[:256], data[256:]
noisy_train_data, noisy_test_data = noise(train_data), noise(test_data)

input = layers.Input(shape=(16, 16, 1))
# Encoder
x = layers.Conv2D(8, (3, 3), activation="relu", padding="same")(input)
x = layers.MaxPooling2D((2, 2), padding="same")(x)
x = layers.Conv2D(8, (3, 3), activation="relu", padding="same")(x)
x = layers.MaxPooling2D((2, 2), padding="same")(x)
# Decoder
x = layers.Conv2DTranspose(8, (3, 3), strides=2, activation="relu", padding="same")(x)
x = layers.Conv2DTranspose(8, (3, 3), strides=2, activation="relu", padding="same")(x)
x = layers.Conv2D(1, (3, 3), activation="sigmoid", padding="same")(x)

autoencoder = keras.Model(input, x)
autoencoder.compile(optimizer="adam", loss="binary_crossentropy")
autoencoder.fit(
    x=train_data,
    y=train_data,
    epochs=2,
    batch_size=16,
    shuffle=True,
    validation_data=(test_data, test_data),
    callbacks=[PreemptionCallback("runs/clean")],
)

# Now that we know that our autoencoder works, let's retrain it using the noisy data.
autoencoder.fit(
    x=noisy_train_data,
    y=train_data,
    epochs=2,
    batch_size=16,
    shuffle=True,
    validation_data=(noisy_test_data, test_data),
    callbacks=[PreemptionCallback("runs/noisy")],
)
predictions = autoencoder.predict(noisy_test_data)
print("error", float(np.mean((predictions - test_data) ** 2)))
