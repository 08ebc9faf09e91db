"""Training with built-in methods: several inputs and outputs, losses with weights, dictionaries of targets."""

import keras
import numpy as np
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(50)

image_input = keras.Input(shape=(12, 12, 3), name="img_input")
timeseries_input = keras.Input(shape=(None, 6), name="ts_input")
x1 = layers.Conv2D(3, 3)(image_input)
x1 = layers.GlobalMaxPooling2D()(x1)
x2 = layers.Conv1D(3, 3)(timeseries_input)
x2 = layers.GlobalMaxPooling1D()(x2)
x = layers.concatenate([x1, x2])
score_output = layers.Dense(1, name="score_output")(x)
class_output = layers.Dense(5, name="class_output")(x)
model = keras.Model(
    inputs=[image_input, timeseries_input],
    outputs={"score_output": score_output, "class_output": class_output},
)
model.compile(
    optimizer=keras.optimizers.RMSprop(1e-3),
    loss={
        "score_output": keras.losses.MeanSquaredError(),
        "class_output": keras.losses.CategoricalCrossentropy(from_logits=True),
    },
    metrics={
        "score_output": [keras.metrics.MeanAbsolutePercentageError(), keras.metrics.MeanAbsoluteError()],
        "class_output": [keras.metrics.CategoricalAccuracy()],
    },
    loss_weights={"score_output": 2.0, "class_output": 1.0},
)

img_data = np.random.random_sample(size=(320, 12, 12, 3))
ts_data = np.random.random_sample(size=(320, 10, 6))
score_targets = np.random.random_sample(size=(320, 1))
class_targets = keras.utils.to_categorical(np.random.randint(0, 5, size=320), 5)


def part(start, end):
    inputs = {"img_input": img_data[start:end], "ts_input": ts_data[start:end]}
    targets = {"score_output": score_targets[start:end], "class_output": class_targets[start:end]}
    return inputs, targets


model.fit(
    *part(0, 256),
    batch_size=32,
    epochs=3,
    validation_data=part(256, 320),
    callbacks=[keras.callbacks.TensorBoard("full_path_to_your_logs"), PreemptionCallback("runs/built_in")],
)
