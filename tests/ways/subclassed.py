"""Models that train on every backend of Keras, and what those of one backend are derived from."""

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


class WithNoise(Subclassed):
    """Has its own seed generator and its own metric; a backend's class has the step that draws from it.

    Args:
        from_global: Whether there is noise from Keras' global seed as well. Keras has one in each thread, and so none
            in those that a strategy runs its replicas in; a compiled step of JAX cannot draw from it.
    """

    def __init__(self, *, from_global: bool) -> None:
        super().__init__()
        self.from_global = from_global
        self.seed = keras.random.SeedGenerator(5)
        self.noise = keras.metrics.Mean(name="noise")

    @property
    def metrics(self) -> Any:
        return [*super().metrics, self.noise]


class TwoNetworks(keras.Model):
    """As Keras' GAN example has them, with an optimizer each; the one of compile is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.Sequential(
            [keras.Input((4,)), layers.Dense(4, activation="tanh"), layers.Dropout(0.2)]
        )
        self.second = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
        self.mean = keras.metrics.Mean(name="loss")
        self.first_optimizer, self.second_optimizer = (
            keras.optimizers.Adam(name=name) for name in ("one", "two")
        )
        self.built = True

    def compile(self, built: bool) -> None:
        super().compile()
        if built:
            self.first_optimizer.build(self.first.trainable_variables)
            self.second_optimizer.build(self.second.trainable_variables)
        self.loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @property
    def metrics(self) -> Any:
        return [self.mean]

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.second(self.first(inputs, training=training))

    def turns(self) -> Any:
        """The networks with their optimizers: the second learns to a smaller loss, then the first to a larger one."""
        return (self.second, self.second_optimizer, 1.0), (self.first, self.first_optimizer, -1.0)


def descend(optimizer: Any, tape: Any, loss: Any, variables: Any) -> None:
    """Takes one step of an optimizer."""
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def supervised(model: Any, inputs: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Takes one step of the optimizer of compile, with TensorFlow; returns the loss and what the model said."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        said = model(inputs, training=True)
        loss = model.compute_loss(x, y, said)
    descend(model.optimizer, tape, loss, model.trainable_variables)
    return loss, said
