"""Memory-efficient embeddings: quotient-remainder and mixed-dimension tables, several inputs of strings."""

import math

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from keras.layers import StringLookup

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(61)

batch_size, num_epochs, base_embedding_dim = 32, 3, 8
movie_vocabulary = [f"movie_{number}" for number in range(90)]
user_vocabulary = [f"user_{number}" for number in range(40)]


def ratings_data(count):
    movies, users = np.random.randint(0, 90, size=count), np.random.randint(0, 40, size=count)
    features = {
        "movie_id": np.array(movie_vocabulary)[movies],
        "user_id": np.array(user_vocabulary)[users],
    }
    return features, np.clip(3 + np.sin(movies) + np.cos(users), 0, 5).astype("float32") / 5


def get_dataset(count, batch_size, shuffle=True):
    dataset = tf.data.Dataset.from_tensor_slices(ratings_data(count))
    if shuffle:
        dataset = dataset.shuffle(count)
    return dataset.batch(batch_size)


class QREmbedding(keras.layers.Layer):
    def __init__(self, vocabulary, embedding_dim, num_buckets, name=None):
        super().__init__(name=name)
        self.num_buckets = num_buckets
        self.index_lookup = StringLookup(vocabulary=vocabulary, mask_token=None, num_oov_indices=0)
        self.q_embeddings = layers.Embedding(num_buckets, embedding_dim)
        self.r_embeddings = layers.Embedding(num_buckets, embedding_dim)

    def call(self, inputs):
        # Get the item index, its quotient and its remainder.
        embedding_index = self.index_lookup(inputs)
        quotient_index = tf.math.floordiv(embedding_index, self.num_buckets)
        remainder_index = tf.math.floormod(embedding_index, self.num_buckets)
        # Use multiplication as a combiner operation
        return self.q_embeddings(quotient_index) * self.r_embeddings(remainder_index)


class MDEmbedding(keras.layers.Layer):
    def __init__(self, blocks_vocabulary, blocks_embedding_dims, base_embedding_dim, name=None):
        super().__init__(name=name)
        self.num_blocks = len(blocks_vocabulary)
        # Create vocab to block lookup.
        keys, values = [], []
        for block_idx, block_vocab in enumerate(blocks_vocabulary):
            keys.extend(block_vocab)
            values.extend([block_idx] * len(block_vocab))
        self.vocab_to_block = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), -1)
        self.block_embedding_encoders = []
        self.block_embedding_projectors = []
        for block_vocab, block_dim in zip(blocks_vocabulary, blocks_embedding_dims, strict=True):
            lookup = StringLookup(vocabulary=block_vocab, mask_token=None, num_oov_indices=1)
            embeddings = layers.Embedding(len(block_vocab) + 1, block_dim)
            self.block_embedding_encoders.append(keras.Sequential([lookup, embeddings]))
            self.block_embedding_projectors.append(layers.Dense(base_embedding_dim))

    def call(self, inputs):
        block_indicies = self.vocab_to_block.lookup(inputs)
        embeddings = tf.zeros(shape=(tf.shape(inputs)[0], base_embedding_dim))
        for idx in range(self.num_blocks):
            in_block = tf.cast(block_indicies == idx, tf.float32)[:, None]
            embedded = self.block_embedding_encoders[idx](inputs)
            embeddings += in_block * self.block_embedding_projectors[idx](embedded)
        return embeddings


def create_memory_efficient_model():
    movie_input = layers.Input(name="movie_id", shape=(), dtype="string")
    user_input = layers.Input(name="user_id", shape=(), dtype="string")
    user_embedding = QREmbedding(
        user_vocabulary, base_embedding_dim, num_buckets=math.ceil(math.sqrt(40)), name="user_embedding"
    )(user_input)
    # Popular movies have a table of more dimensions than the others.
    movie_embedding = MDEmbedding(
        [movie_vocabulary[:20], movie_vocabulary[20:]], [8, 4], base_embedding_dim, name="movie_embedding"
    )(movie_input)
    logits = layers.Dot(axes=1, name="dot_similarity")([user_embedding, movie_embedding])
    prediction = keras.activations.sigmoid(logits) * ops.ones_like(logits)
    return keras.Model(inputs=[movie_input, user_input], outputs=prediction, name="baseline_model")


model = create_memory_efficient_model()
model.compile(
    optimizer=keras.optimizers.Adam(learning_rate=0.01),
    loss=keras.losses.MeanSquaredError(),
    metrics=[keras.metrics.MeanAbsoluteError(name="mae")],
)
history = model.fit(
    get_dataset(480, batch_size),
    epochs=num_epochs,
    validation_data=get_dataset(120, batch_size, shuffle=False),
    callbacks=[PreemptionCallback("runs/embeddings")],
)
print("mae", history.history["val_mae"][-1])
