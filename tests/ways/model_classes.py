"""Model classes that the catalogue trains. They need Keras, so that the catalogue imports them inside its jobs."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tests.ways.subclassed import Subclassed as Subclassed

layers = keras.layers


def _cross_entropy() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Counting(Subclassed):
    """Counts its calls, those of a validation too, and depends on the count."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, inputs: Any, training: bool = False) -> Any:
        self.calls.assign(self.calls + 1.0)
        return super().call(inputs + 0.01 * self.calls, training=training)


class Noisy(Subclassed):
    """Its own train_step, with noise from its own seed generator, and its own metric.

    Args:
        from_global: Whether there is noise from Keras' global seed as well. Keras has one in each thread, and so none
            in those that a strategy runs its replicas in.
    """

    def __init__(self, *, from_global: bool) -> None:
        super().__init__()
        self.from_global = from_global
        self.seed = keras.random.SeedGenerator(5)
        self.noise = keras.metrics.Mean(name="noise")

    @property
    def metrics(self) -> Any:
        return [*super().metrics, self.noise]

    def train_step(self, data: Any) -> Any:
        x, y = data
        noise = keras.random.normal(tf.shape(x), stddev=0.1, seed=self.seed)
        if self.from_global:
            noise += keras.random.normal(tf.shape(x), stddev=0.1)
        with tf.GradientTape() as tape:
            predicted = self(x + noise, training=True)
            loss = self.compute_loss(x, y, predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.noise.update_state(noise)
        logs = self.compute_metrics(x, y, predicted)
        return {**logs, "noise": self.noise.result()}


class WithPlainVariables(Subclassed):
    """Counts its batches in a `tf.Variable`, which its loss depends on, and draws from a `tf.random.Generator`."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = tf.Variable(0, dtype=tf.int64)
        self.generator = tf.random.Generator.from_seed(5)

    def train_step(self, data: Any) -> Any:
        x, y = data
        self.seen.assign_add(1)
        return super().train_step((x / tf.cast(self.seen, x.dtype) + self.generator.normal(tf.shape(x)), y))


class DrawsFromTensorFlow(Subclassed):
    """Draws from an operation whose state is not saved."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        return super().train_step((x + tf.random.normal(tf.shape(x), stddev=0.1), y))


class DrawsFromGlobalGenerator(Subclassed):
    """Draws from a generator that is not an attribute of the model."""

    def __init__(self) -> None:
        super().__init__()
        # Seeded, because TensorFlow's own one begins in another state in every process.
        tf.random.set_global_generator(tf.random.Generator.from_seed(5))

    def train_step(self, data: Any) -> Any:
        x, y = data
        noise = tf.random.get_global_generator().normal(tf.shape(x), stddev=0.1)
        return super().train_step((x + noise, y))


class Adversarial(keras.Model):
    """Two networks with an optimizer each, as Keras' GAN example has them; the one of compile is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.Sequential(
            [keras.Input((4,)), layers.Dense(4, activation="tanh"), layers.Dropout(0.2)]
        )
        self.second = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
        self.built = True

    def compile(self, built: bool) -> None:
        super().compile()
        self.first_optimizer, self.second_optimizer = (
            keras.optimizers.Adam(name="one"),
            keras.optimizers.Adam(name="two"),
        )
        if built:
            self.first_optimizer.build(self.first.trainable_variables)
            self.second_optimizer.build(self.second.trainable_variables)
        self.loss_fn = _cross_entropy()
        self.mean = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> Any:
        return [self.mean]

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.second(self.first(inputs, training=training))

    def train_step(self, data: Any) -> Any:
        x, y = data
        for network, optimizer, sign in (
            (self.second, self.second_optimizer, 1.0),
            (self.first, self.first_optimizer, -1.0),
        ):
            with tf.GradientTape() as tape:
                loss = self.loss_fn(y, self(x, training=True))
                signed = sign * loss
            gradients = tape.gradient(signed, network.trainable_variables)
            optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}


class Largest(keras.metrics.Metric):
    """A metric whose result is its own variable."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.value = self.add_weight(shape=(), initializer="zeros", name="value")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

    def result(self) -> Any:
        return self.value


if keras.backend.backend() == "jax":
    from tests.ways import jax_classes

    Adversarial = jax_classes.Adversarial  # type: ignore[misc]
    Noisy = jax_classes.Noisy  # type: ignore[misc]
