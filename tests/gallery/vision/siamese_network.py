"""Image similarity with a triplet loss: batches of (anchor, positive, negative), and a train_step of its own."""

import os

import keras
import numpy as np
import tensorflow as tf
from keras import layers, metrics, ops

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(42)

target_shape = (16, 16)
anchor_images_path, positive_images_path = "left", "right"

# Write the two folders: an image in the one looks like the image of the same name in the other.
for path in (anchor_images_path, positive_images_path):
    os.makedirs(path, exist_ok=True)
for i in range(160):
    color = np.random.uniform(30, 220, size=3)
    for path in (anchor_images_path, positive_images_path):
        pixels = np.clip(np.random.normal(color, 25, size=(20, 20, 3)), 0, 255).astype("uint8")
        tf.io.write_file(f"{path}/{i:03d}.jpg", tf.io.encode_jpeg(pixels))


def preprocess_image(filename):
    image = tf.image.decode_jpeg(tf.io.read_file(filename), channels=3)
    return tf.image.resize(tf.image.convert_image_dtype(image, tf.float32), target_shape)


def preprocess_triplets(anchor, positive, negative):
    return preprocess_image(anchor), preprocess_image(positive), preprocess_image(negative)


anchor_images = sorted(f"{anchor_images_path}/{name}" for name in os.listdir(anchor_images_path))
positive_images = sorted(f"{positive_images_path}/{name}" for name in os.listdir(positive_images_path))
image_count = len(anchor_images)
anchor_dataset = tf.data.Dataset.from_tensor_slices(anchor_images)
positive_dataset = tf.data.Dataset.from_tensor_slices(positive_images)

# Negative images are drawn from both folders.
rng = np.random.RandomState(seed=42)
rng.shuffle(anchor_images)
rng.shuffle(positive_images)
negative_images = anchor_images + positive_images
np.random.RandomState(seed=32).shuffle(negative_images)
negative_dataset = tf.data.Dataset.from_tensor_slices(negative_images)
negative_dataset = negative_dataset.shuffle(buffer_size=4096)

dataset = tf.data.Dataset.zip((anchor_dataset, positive_dataset, negative_dataset))
dataset = dataset.shuffle(buffer_size=1024)
dataset = dataset.map(preprocess_triplets)

# Let's now split our dataset in train and validation.
train_dataset = dataset.take(round(image_count * 0.8))
val_dataset = dataset.skip(round(image_count * 0.8))
train_dataset = train_dataset.batch(8, drop_remainder=False).prefetch(tf.data.AUTOTUNE)
val_dataset = val_dataset.batch(8, drop_remainder=False).prefetch(tf.data.AUTOTUNE)

base_inputs = layers.Input((*target_shape, 3))
x = layers.Conv2D(8, 3, strides=2, activation="relu")(base_inputs)
x = layers.Flatten()(x)
x = layers.Dense(32, activation="relu")(x)
x = layers.BatchNormalization()(x)
embedding = keras.Model(base_inputs, layers.Dense(16)(x), name="Embedding")


class DistanceLayer(layers.Layer):
    """Computes the distances between the anchor and the positive, and the anchor and the negative."""

    def call(self, anchor, positive, negative):
        ap_distance = ops.sum(tf.square(anchor - positive), -1)
        an_distance = ops.sum(tf.square(anchor - negative), -1)
        return (ap_distance, an_distance)


anchor_input = layers.Input(name="anchor", shape=(*target_shape, 3))
positive_input = layers.Input(name="positive", shape=(*target_shape, 3))
negative_input = layers.Input(name="negative", shape=(*target_shape, 3))
distances = DistanceLayer()(embedding(anchor_input), embedding(positive_input), embedding(negative_input))
siamese_network = keras.Model(inputs=[anchor_input, positive_input, negative_input], outputs=distances)


class SiameseModel(keras.Model):
    def __init__(self, siamese_network, margin=0.5):
        super().__init__()
        self.siamese_network = siamese_network
        self.margin = margin
        self.loss_tracker = metrics.Mean(name="loss")

    def call(self, inputs):
        return self.siamese_network(inputs)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self._compute_loss(data)
        gradients = tape.gradient(loss, self.siamese_network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.siamese_network.trainable_weights, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        loss = self._compute_loss(data)
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def _compute_loss(self, data):
        ap_distance, an_distance = self.siamese_network(data)
        return ops.maximum(ap_distance - an_distance + self.margin, 0.0)

    @property
    def metrics(self):
        return [self.loss_tracker]


siamese_model = SiameseModel(siamese_network)
siamese_model.compile(optimizer=keras.optimizers.Adam(0.0001), weighted_metrics=[])
siamese_model.fit(
    train_dataset, epochs=2, validation_data=val_dataset, callbacks=[PreemptionCallback("runs/triplets")]
)

anchor, positive, negative = next(iter(train_dataset))
similarity = keras.metrics.CosineSimilarity()(embedding(anchor), embedding(positive))
print("Positive similarity:", similarity.numpy())
