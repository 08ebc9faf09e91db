"""A model that trains on every backend of Keras, and that others are derived from."""

from __future__ import annotations

from typing import Any

import keras

layers = keras.layers


class Subclassed(keras.Model):
    """Built by `fit`, when it sees the data."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(5, activation="relu")
        self.normalize = layers.BatchNormalization()
        self.dropout = layers.Dropout(0.3)
        self.top = layers.Dense(3)

    def call(self, inputs: Any, training: bool = False) -> Any:
        hidden = self.normalize(self.hidden(inputs), training=training)
        return self.top(self.dropout(hidden, training=training))
