"""Simple convnet on arrays, with validation_split and test-time evaluation."""

import keras
import numpy as np
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(42)

num_classes = 4
input_shape = (14, 14, 1)


def load_data(n):
    """Bars at a height that depends on the class, on a noisy background."""
    y = np.random.randint(0, num_classes, n)
    x = np.random.randint(0, 80, (n, 14, 14))
    x[np.arange(n), 3 * y + 1] += 150
    return x, y


x_train, y_train = load_data(500)
x_test, y_test = load_data(64)
x_train = np.expand_dims(x_train.astype("float32") / 255, -1)
x_test = np.expand_dims(x_test.astype("float32") / 255, -1)
y_train = keras.utils.to_categorical(y_train, num_classes)
y_test = keras.utils.to_categorical(y_test, num_classes)

model = keras.Sequential(
    [
        keras.Input(shape=input_shape),
        layers.Conv2D(8, kernel_size=(3, 3), activation="relu"),
        layers.MaxPooling2D(pool_size=(2, 2)),
        layers.Conv2D(16, kernel_size=(3, 3), activation="relu"),
        layers.Flatten(),
        layers.Dropout(0.5),
        layers.Dense(num_classes, activation="softmax"),
    ]
)
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(
    x_train,
    y_train,
    batch_size=32,
    epochs=3,
    validation_split=0.1,
    callbacks=[PreemptionCallback("runs/mnist")],
)

score = model.evaluate(x_test, y_test, verbose=0)
print("Test loss:", score[0])
print("Test accuracy:", score[1])
