"""Mixed precision: float16 compute with loss scaling, and a float32 softmax at the end."""

import keras
import numpy as np
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(16)
keras.mixed_precision.set_global_policy("mixed_float16")

inputs = keras.Input(shape=(64,), name="digits")
x = layers.Dense(48, activation="relu", name="dense_1")(inputs)
x = layers.Dropout(0.1)(x)
x = layers.Dense(48, activation="relu", name="dense_2")(x)
# The output of the model should be float32, even if the model's compute is float16.
x = layers.Dense(10, name="dense_logits")(x)
outputs = layers.Activation("softmax", dtype="float32", name="predictions")(x)
model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(
    loss="sparse_categorical_crossentropy", optimizer=keras.optimizers.RMSprop(), metrics=["accuracy"]
)

y = np.random.randint(0, 10, size=480)
x = np.random.uniform(0, 255, size=(480, 64))
x[np.arange(480), 5 * y] += 255
x = x.astype("float32") / 255
x_train, y_train, x_test, y_test = x[:400], y[:400], x[400:], y[400:]

initial_weights = model.get_weights()
history = model.fit(
    x_train,
    y_train,
    batch_size=32,
    epochs=3,
    validation_split=0.2,
    callbacks=[PreemptionCallback("runs/mixed")],
)
test_scores = model.evaluate(x_test, y_test, verbose=2)
print("Test loss:", test_scores[0])
print("Test accuracy:", test_scores[1])
