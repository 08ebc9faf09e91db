"""One shuffled dataset of file names, split by take and skip; each epoch shuffles it again."""

import pathlib

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(123)

batch_size, img_height, img_width = 8, 16, 16
data_dir = pathlib.Path("flower_photos")
class_names = np.array(["daisy", "roses", "tulips"])

# Write a folder of photos for each kind of flower.
for channel, name in enumerate(class_names):
    (data_dir / name).mkdir(parents=True, exist_ok=True)
    for i in range(60):
        photo = np.random.randint(0, 200, size=(18, 18, 3))
        photo[..., channel] += 55
        tf.io.write_file(str(data_dir / name / f"{i}.jpg"), tf.io.encode_jpeg(photo.astype("uint8")))

image_count = len(list(data_dir.glob("*/*.jpg")))
list_ds = tf.data.Dataset.list_files(str(data_dir / "*/*"), shuffle=False)
list_ds = list_ds.shuffle(image_count)

val_size = int(image_count * 0.2)
train_ds = list_ds.skip(val_size)
val_ds = list_ds.take(val_size)


def process_path(file_path):
    label = tf.argmax(tf.strings.split(file_path, "/")[-2] == class_names)
    img = tf.io.decode_jpeg(tf.io.read_file(file_path), channels=3)
    return tf.image.resize(img, [img_height, img_width]), label


def configure_for_performance(ds):
    return ds.batch(batch_size).prefetch(buffer_size=tf.data.AUTOTUNE)


train_ds = configure_for_performance(train_ds.map(process_path, num_parallel_calls=tf.data.AUTOTUNE))
val_ds = configure_for_performance(val_ds.map(process_path, num_parallel_calls=tf.data.AUTOTUNE))

model = keras.Sequential(
    [
        layers.Rescaling(1.0 / 255),
        layers.Conv2D(8, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(8, 3, activation="relu"),
        layers.Flatten(),
        layers.Dense(16, activation="relu"),
        layers.Dense(len(class_names)),
    ]
)
model.compile(
    optimizer="adam",
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(train_ds, validation_data=val_ds, epochs=3, callbacks=[PreemptionCallback("runs/flowers")])
