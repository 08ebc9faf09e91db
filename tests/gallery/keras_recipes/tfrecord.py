"""Images in TFRecord files: written as tf.train.Example, read in any order of files, with a batch size for each."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(70)

AUTOTUNE, BATCH_SIZE, IMAGE_SIZE, num_samples, num_tfrecords = tf.data.AUTOTUNE, 16, [12, 12], 64, 6


def create_example(image, target):
    feature = {
        "image": tf.train.Feature(
            bytes_list=tf.train.BytesList(value=[tf.io.encode_jpeg(image).numpy()]),
        ),
        "target": tf.train.Feature(int64_list=tf.train.Int64List(value=[target])),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature))


for tfrec_num in range(num_tfrecords):
    with tf.io.TFRecordWriter(f"file_{tfrec_num:02d}-{num_samples}.tfrec") as writer:
        for _ in range(num_samples):
            target = np.random.randint(0, 2)
            image = np.random.randint(0, 200, size=(12, 12, 3)) + 55 * target
            writer.write(create_example(image.astype("uint8"), target).SerializeToString())

FILENAMES = sorted(tf.io.gfile.glob("*.tfrec"))
split_ind = int(0.8 * len(FILENAMES))
TRAINING_FILENAMES, VALID_FILENAMES = FILENAMES[:split_ind], FILENAMES[split_ind:]


def read_tfrecord(example):
    tfrecord_format = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "target": tf.io.FixedLenFeature([], tf.int64),
    }
    example = tf.io.parse_single_example(example, tfrecord_format)
    image = tf.cast(tf.image.decode_jpeg(example["image"], channels=3), tf.float32)
    return tf.reshape(image, [*IMAGE_SIZE, 3]), tf.cast(example["target"], tf.int32)


def load_dataset(filenames):
    dataset = tf.data.TFRecordDataset(filenames, num_parallel_reads=AUTOTUNE)
    return dataset.map(read_tfrecord, num_parallel_calls=AUTOTUNE)


def get_dataset(filenames):
    dataset = load_dataset(filenames)
    dataset = dataset.shuffle(2048)
    dataset = dataset.prefetch(buffer_size=AUTOTUNE)
    return dataset.batch(BATCH_SIZE)


train_dataset = get_dataset(TRAINING_FILENAMES)
valid_dataset = get_dataset(VALID_FILENAMES)

model = keras.Sequential(
    [
        keras.Input((*IMAGE_SIZE, 3)),
        layers.Rescaling(1.0 / 127.5, offset=-1),
        layers.Conv2D(8, 3, activation="relu"),
        layers.Conv2D(8, 3, strides=2, activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(8, activation="relu"),
        layers.Dropout(0.3),
        layers.Dense(1, activation="sigmoid"),
    ]
)
initial_learning_rate = 0.01
lr_schedule = keras.optimizers.schedules.ExponentialDecay(
    initial_learning_rate, decay_steps=20, decay_rate=0.96, staircase=True
)
model.compile(
    optimizer=keras.optimizers.Adam(learning_rate=lr_schedule),
    loss="binary_crossentropy",
    metrics=[keras.metrics.AUC(name="auc")],
)
checkpoint_cb = keras.callbacks.ModelCheckpoint("melanoma_model.keras", save_best_only=True)
early_stopping_cb = keras.callbacks.EarlyStopping(patience=10, restore_best_weights=True)
history = model.fit(
    train_dataset,
    epochs=2,
    validation_data=valid_dataset,
    callbacks=[checkpoint_cb, early_stopping_cb, PreemptionCallback("runs/tfrecord")],
)
