"""Metric learning: batches of (anchors, positives) of all classes, from a PyDataset that the model cannot call."""

import random
from collections import defaultdict

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(55)

height_width, num_classes = 12, 6

y_train = np.random.randint(0, num_classes, size=240)
x_train = np.random.uniform(0, 0.5, size=(240, height_width, height_width, 3)).astype("float32")
x_train[np.arange(240), 2 * y_train] += 0.5
class_idx_to_train_idxs = defaultdict(list)
for y_train_idx, y in enumerate(y_train):
    class_idx_to_train_idxs[y].append(y_train_idx)


class AnchorPositivePairs(keras.utils.Sequence):
    def __init__(self, num_batches):
        super().__init__()
        self.batches = num_batches

    def __len__(self):
        return self.batches

    def __getitem__(self, _idx):
        x = np.empty((2, num_classes, height_width, height_width, 3), dtype=np.float32)
        for class_idx in range(num_classes):
            examples_for_class = class_idx_to_train_idxs[class_idx]
            anchor_idx = random.choice(examples_for_class)
            positive_idx = random.choice(examples_for_class)
            while positive_idx == anchor_idx:
                positive_idx = random.choice(examples_for_class)
            x[0, class_idx] = x_train[anchor_idx]
            x[1, class_idx] = x_train[positive_idx]
        return x


class EmbeddingModel(keras.Model):
    def train_step(self, data):
        if isinstance(data, tuple):  # Workaround for a bug in the data adapter.
            data = data[0]
        anchors, positives = data[0], data[1]
        with tf.GradientTape() as tape:
            anchor_embeddings = self(anchors, training=True)
            positive_embeddings = self(positives, training=True)
            # Cosine similarities between anchors and positives, as logits scaled by a temperature.
            similarities = ops.einsum("ae,pe->ap", anchor_embeddings, positive_embeddings)
            similarities /= 0.2
            sparse_labels = ops.arange(num_classes)
            loss = self.compute_loss(y=sparse_labels, y_pred=similarities)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(sparse_labels, similarities)
        return {m.name: m.result() for m in self.metrics}


inputs = layers.Input(shape=(height_width, height_width, 3))
x = layers.Conv2D(filters=8, kernel_size=3, strides=2, activation="relu")(inputs)
x = layers.Conv2D(filters=16, kernel_size=3, strides=2, activation="relu")(x)
x = layers.GlobalAveragePooling2D()(x)
embeddings = layers.Dense(units=8, activation=None)(x)
embeddings = layers.UnitNormalization()(embeddings)
model = EmbeddingModel(inputs, embeddings)
model.compile(
    optimizer=keras.optimizers.Adam(learning_rate=1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
model.fit(AnchorPositivePairs(num_batches=15), epochs=3, callbacks=[PreemptionCallback("runs/metric")])

near_neighbours = model.predict(x_train, verbose=0)
gram_matrix = np.einsum("ae,be->ab", near_neighbours, near_neighbours)
print("neighbours", np.argsort(gram_matrix.T)[:, -3:].shape)
