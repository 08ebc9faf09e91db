"""Model classes that the catalogue trains. They need Keras, so that the catalogue imports them inside its jobs."""

from __future__ import annotations

from typing import Any

import keras

from tests.ways.late import tf
from tests.ways.subclassed import Subclassed as Subclassed
from tests.ways.subclassed import TwoNetworks, WithNoise, descend, supervised

layers = keras.layers


class Counting(Subclassed):
    """Counts its calls, those of a validation too, and depends on the count."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, inputs: Any, training: bool = False) -> Any:
        self.calls.assign(self.calls + 1.0)
        return super().call(inputs + 0.01 * self.calls, training=training)


class Noisy(WithNoise):
    """Its own train_step, with noise from its own seed generator, and its own metric."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        noise = keras.random.normal(tf.shape(x), stddev=0.1, seed=self.seed)
        if self.from_global:
            noise += keras.random.normal(tf.shape(x), stddev=0.1)
        _, predicted = supervised(self, x + noise, x, y)
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


class Adversarial(TwoNetworks):
    """Trains both in a step."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        for network, optimizer, sign in self.turns():
            with tf.GradientTape() as tape:
                loss = self.loss_fn(y, self(x, training=True))
                signed = sign * loss
            descend(optimizer, tape, signed, network.trainable_variables)
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
elif keras.backend.backend() == "torch":
    from tests.ways import torch_classes

    Adversarial = torch_classes.Adversarial  # type: ignore[misc]
    Noisy = torch_classes.Noisy  # type: ignore[misc]
