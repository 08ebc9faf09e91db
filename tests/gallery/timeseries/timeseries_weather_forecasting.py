"""Weather forecasting: timeseries_dataset_from_array, an LSTM, EarlyStopping and the best weights in a file."""

import keras
import numpy as np

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(6)

# Temperature, pressure and wind, once an hour.
hours = np.arange(1200)
temperature = 10 + 8 * np.sin(2 * np.pi * hours / 24) + np.random.normal(0, 1, size=1200)
pressure = 1000 + 5 * np.cos(2 * np.pi * hours / 170) + np.random.normal(0, 1, size=1200)
wind = np.abs(np.random.normal(3, 1, size=1200))
features = np.stack([temperature, pressure, wind], axis=1)

split_fraction, step, past, future = 0.715, 6, 72, 12
learning_rate, batch_size, epochs = 0.001, 64, 3
train_split = int(split_fraction * len(features))


def normalize(data, train_split):
    data_mean = data[:train_split].mean(axis=0)
    data_std = data[:train_split].std(axis=0)
    return (data - data_mean) / data_std


features = normalize(features, train_split)
train_data, val_data = features[:train_split], features[train_split:]
start, end = past + future, past + future + train_split
sequence_length = int(past / step)

dataset_train = keras.preprocessing.timeseries_dataset_from_array(
    train_data,
    features[start:end, [0]],
    sequence_length=sequence_length,
    sampling_rate=step,
    batch_size=batch_size,
)
x_end = len(val_data) - past - future
label_start = train_split + past + future
dataset_val = keras.preprocessing.timeseries_dataset_from_array(
    val_data[:x_end],
    features[label_start:, [0]],
    sequence_length=sequence_length,
    sampling_rate=step,
    batch_size=batch_size,
)
for batch in dataset_train.take(1):
    inputs, targets = batch
print("Input shape:", inputs.numpy().shape)
print("Target shape:", targets.numpy().shape)

inputs = keras.layers.Input(shape=(inputs.shape[1], inputs.shape[2]))
lstm_out = keras.layers.LSTM(16)(inputs)
outputs = keras.layers.Dense(1)(lstm_out)
model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=learning_rate), loss="mse")

path_checkpoint = "model_checkpoint.weights.h5"
es_callback = keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=0, patience=5)
modelckpt_callback = keras.callbacks.ModelCheckpoint(
    monitor="val_loss", filepath=path_checkpoint, verbose=1, save_weights_only=True, save_best_only=True
)
history = model.fit(
    dataset_train,
    epochs=epochs,
    validation_data=dataset_val,
    callbacks=[es_callback, modelckpt_callback, PreemptionCallback("runs/weather")],
)
for x, y in dataset_val.take(2):
    print("predicted", model.predict(x, verbose=0)[0], "true", y[0].numpy())
