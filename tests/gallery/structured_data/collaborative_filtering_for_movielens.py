"""Collaborative filtering: a subclassed model of embeddings, trained on pairs of user and movie numbers."""

import keras
import numpy as np
from keras import layers, ops

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(42)

num_users, num_movies, EMBEDDING_SIZE = 60, 80, 8
users = np.random.randint(0, num_users, size=1200)
movies = np.random.randint(0, num_movies, size=1200)
ratings = np.clip(np.round(3 + np.cos(users) + np.sin(movies)), 0.5, 5.0)

x = np.stack([users, movies], axis=1)
# Normalize the targets between 0 and 1. Makes it easy to train.
y = (ratings - ratings.min()) / (ratings.max() - ratings.min())
train_indices = int(0.9 * len(x))
x_train, x_val, y_train, y_val = x[:train_indices], x[train_indices:], y[:train_indices], y[train_indices:]


class RecommenderNet(keras.Model):
    def __init__(self, num_users, num_movies, embedding_size, **kwargs):
        super().__init__(**kwargs)
        embedding = {
            "embeddings_initializer": "he_normal",
            "embeddings_regularizer": keras.regularizers.l2(1e-6),
        }
        self.user_embedding = layers.Embedding(num_users, embedding_size, **embedding)
        self.user_bias = layers.Embedding(num_users, 1)
        self.movie_embedding = layers.Embedding(num_movies, embedding_size, **embedding)
        self.movie_bias = layers.Embedding(num_movies, 1)

    def call(self, inputs):
        user_vector = self.user_embedding(inputs[:, 0])
        user_bias = self.user_bias(inputs[:, 0])
        movie_vector = self.movie_embedding(inputs[:, 1])
        movie_bias = self.movie_bias(inputs[:, 1])
        dot_user_movie = ops.tensordot(user_vector, movie_vector, 2)
        # Add all the components (including bias)
        return ops.sigmoid(dot_user_movie + user_bias + movie_bias)


model = RecommenderNet(num_users, num_movies, EMBEDDING_SIZE)
model.compile(loss=keras.losses.BinaryCrossentropy(), optimizer=keras.optimizers.Adam(learning_rate=0.001))
history = model.fit(
    x=x_train,
    y=y_train,
    batch_size=64,
    epochs=3,
    verbose=1,
    validation_data=(x_val, y_val),
    callbacks=[PreemptionCallback("runs/movielens")],
)
movies_not_watched = np.setdiff1d(np.arange(num_movies), movies[users == 7])
user_movie_array = np.stack([np.full(len(movies_not_watched), 7), movies_not_watched], axis=1)
top = model.predict(user_movie_array, verbose=0).flatten().argsort()[-5:][::-1]
print("recommended", movies_not_watched[top])
