"""Audio classification: WAV files by audio_dataset_from_directory, spectrograms in a map, cached."""

import os

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(59)

# Write spoken commands: a whistle of another pitch for each word.
for word, pitch in (("down", 300), ("go", 600), ("up", 900)):
    os.makedirs(f"mini_speech_commands/{word}", exist_ok=True)
    for i in range(60):
        time = np.arange(800) / 4000
        sound = np.sin(2 * np.pi * pitch * time * np.random.uniform(0.9, 1.1)) + np.random.normal(0, 0.8, 800)
        wav = tf.audio.encode_wav((sound / 4).astype("float32")[:, None], sample_rate=4000)
        tf.io.write_file(f"mini_speech_commands/{word}/{i}.wav", wav)

train_ds, val_ds = keras.utils.audio_dataset_from_directory(
    directory="mini_speech_commands",
    batch_size=8,
    validation_split=0.2,
    seed=0,
    output_sequence_length=800,
    subset="both",
)
label_names = np.array(train_ds.class_names)


def squeeze(audio, labels):
    return tf.squeeze(audio, axis=-1), labels


train_ds = train_ds.map(squeeze, tf.data.AUTOTUNE)
val_ds = val_ds.map(squeeze, tf.data.AUTOTUNE)
test_ds = val_ds.shard(num_shards=2, index=0)
val_ds = val_ds.shard(num_shards=2, index=1)


def get_spectrogram(waveform):
    spectrogram = tf.signal.stft(waveform, frame_length=63, frame_step=32)
    return tf.abs(spectrogram)[..., tf.newaxis]


def make_spec_ds(ds):
    return ds.map(lambda audio, label: (get_spectrogram(audio), label), num_parallel_calls=tf.data.AUTOTUNE)


train_spectrogram_ds = make_spec_ds(train_ds)
val_spectrogram_ds = make_spec_ds(val_ds)
test_spectrogram_ds = make_spec_ds(test_ds)
example_spectrograms, _ = next(iter(train_spectrogram_ds.take(1)))
train_spectrogram_ds = train_spectrogram_ds.cache().shuffle(10000).prefetch(tf.data.AUTOTUNE)
val_spectrogram_ds = val_spectrogram_ds.cache().prefetch(tf.data.AUTOTUNE)

norm_layer = layers.Normalization()
norm_layer.adapt(data=train_spectrogram_ds.map(map_func=lambda spec, label: spec))
model = keras.Sequential(
    [
        layers.Input(shape=example_spectrograms.shape[1:]),
        # Downsample the input.
        layers.Resizing(12, 12),
        norm_layer,
        layers.Conv2D(8, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Dropout(0.25),
        layers.Flatten(),
        layers.Dense(16, activation="relu"),
        layers.Dropout(0.5),
        layers.Dense(len(label_names)),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(
    train_spectrogram_ds,
    validation_data=val_spectrogram_ds,
    epochs=3,
    callbacks=[
        keras.callbacks.EarlyStopping(verbose=1, patience=2),
        PreemptionCallback("runs/commands"),
    ],
)
model.evaluate(test_spectrogram_ds, return_dict=True)
