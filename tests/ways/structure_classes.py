"""Models built as Keras' examples build them: most have no call(), and their own train_step over models inside them.

They need Keras, so that the catalogue imports them inside its jobs. Each counts in `traces` how often Python runs its
train_step.
"""

from __future__ import annotations

from typing import Any

import keras

from tests.ways.late import tf
from tests.ways.subclassed import Subclassed, descend, supervised

layers = keras.layers


def _network(width: int, *more: Any) -> Any:
    """Built late: when it is first called."""
    return keras.Sequential([layers.Dense(6, activation="relu"), *more, layers.Dense(width)])


class Structure(keras.Model):
    """A model without call(), whose train_step takes a step of the optimizer of compile with its `loss_of`.

    Attributes:
        traces: How often Python has run its train_step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.traces = [0]
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> Any:
        return [self.tracker]

    def train_step(self, data: Any) -> Any:
        self.traces[0] += 1
        with tf.GradientTape() as tape:
            loss = self.loss_of(data)
        self.apply(self.optimizer, tape, loss, self.learned())
        self.tracker.update_state(loss)
        return {m.name: m.result() for m in self.metrics}

    def learned(self) -> Any:
        return self.trainable_variables

    def apply(self, optimizer: Any, tape: Any, loss: Any, variables: Any) -> None:
        descend(optimizer, tape, loss, variables)


class Sampling(layers.Layer):
    """Draws from the normal distribution that its inputs describe."""

    def __init__(self) -> None:
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(3)

    def call(self, inputs: Any) -> Any:
        mean, spread = inputs
        return mean + keras.ops.exp(0.5 * spread) * keras.random.normal(
            keras.ops.shape(mean), seed=self.seed_generator
        )


class Autoencoder(Structure):
    """A VAE: an encoder and a decoder, three trackers, no call()."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.sampling = _network(4), _network(4), Sampling()
        self.distance = keras.metrics.Mean(name="distance")

    @property
    def metrics(self) -> Any:
        return [self.tracker, self.distance]

    def loss_of(self, data: Any) -> Any:
        x = data[0] if isinstance(data, tuple) else data
        mean, spread = tf.split(self.encoder(x), 2, axis=-1)
        distance = tf.reduce_mean((self.decoder(self.sampling([mean, spread])) - x) ** 2)
        self.distance.update_state(distance)
        return distance - 0.1 * tf.reduce_mean(1 + spread - mean**2 - tf.exp(spread))


class Rivals(Structure):
    """A GAN: networks that are built late, and an optimizer for each, passed to its own compile.

    Args:
        penalty: Whether the judge trains twice a step and is held to a gradient of one, as a WGAN-GP's.
    """

    def __init__(self, *, penalty: bool = False) -> None:
        super().__init__()
        self.judge = _network(1, layers.Dropout(0.3, seed=4))
        self.maker = _network(4, layers.BatchNormalization())
        self.noise = keras.random.SeedGenerator(9)
        self.penalty = penalty

    def compile(self, optimizers: dict[str, Any], **options: Any) -> None:
        super().compile(**options)
        self.parts = optimizers
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

    def train_step(self, data: Any) -> Any:
        self.traces[0] += 1
        x = data[0] if isinstance(data, tuple) else data
        size = tf.shape(x)[0]
        for _ in range(2 if self.penalty else 1):
            made = self.maker(keras.random.normal((size, 2), seed=self.noise), training=True)
            with tf.GradientTape() as tape:
                loss = self.loss_fn(tf.ones((size, 1)), self.judge(x, training=True))
                loss += self.loss_fn(tf.zeros((size, 1)), self.judge(made, training=True))
                if self.penalty:
                    with tf.GradientTape() as inner:
                        inner.watch(made)
                        verdict = self.judge(made, training=True)
                    slope = tf.norm(inner.gradient(verdict, made) + 1e-6, axis=1)
                    loss += tf.reduce_mean((slope - 1.0) ** 2)
            self.apply(self.parts["judge"], tape, loss, self.judge.trainable_variables)
        with tf.GradientTape() as tape:
            made = self.maker(keras.random.normal((size, 2), seed=self.noise), training=True)
            deceit = self.loss_fn(tf.ones((size, 1)), self.judge(made, training=True))
        self.apply(self.parts["maker"], tape, deceit, self.maker.trainable_variables)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result(), "deceit": deceit}


class Diffusion(Structure):
    """Predicts noise; a second network follows the first as its moving average. Validated by its own test_step."""

    def __init__(self) -> None:
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network = keras.Sequential(
            [keras.Input((5,)), layers.Dense(8, activation="relu"), layers.Dense(4)]
        )
        self.ema_network = keras.models.clone_model(self.network)
        self.noise = keras.random.SeedGenerator(1)

    def learned(self) -> Any:
        return self.network.trainable_variables

    def loss_of(self, data: Any, network: Any = None) -> Any:
        network = network or self.network
        x = self.normalizer(data[0] if isinstance(data, tuple) else data)
        noise = keras.random.normal(tf.shape(x), seed=self.noise)
        time = keras.random.uniform((tf.shape(x)[0], 1), seed=self.noise)
        return tf.reduce_mean((network(tf.concat([x * (1 - time) + noise * time, time], -1)) - noise) ** 2)

    def train_step(self, data: Any) -> Any:
        logs = super().train_step(data)
        for weight, average in zip(self.network.weights, self.ema_network.weights, strict=True):
            average.assign(0.9 * average + 0.1 * weight)
        return logs

    def test_step(self, data: Any) -> Any:
        self.tracker.update_state(self.loss_of(data, self.ema_network))
        return {m.name: m.result() for m in self.metrics}


class Contrastive(Structure):
    """SimCLR: batches of two parts, augmented twice, an encoder with its own optimizer and a linear probe."""

    def __init__(self) -> None:
        super().__init__()
        self.augment = keras.Sequential([layers.GaussianNoise(0.3, seed=2), layers.Dropout(0.1, seed=6)])
        self.encoder, self.head, self.probe = _network(4), _network(3), layers.Dense(3)
        self.probe_accuracy = keras.metrics.SparseCategoricalAccuracy(name="p_acc")

    @property
    def metrics(self) -> Any:
        return [self.tracker, self.probe_accuracy]

    def compile(self, contrastive_optimizer: Any, probe_optimizer: Any) -> None:
        super().compile()
        self.contrastive_optimizer, self.probe_optimizer = contrastive_optimizer, probe_optimizer

    def train_step(self, data: Any) -> Any:
        self.traces[0] += 1
        unlabelled, (labelled, labels) = data
        x = tf.concat([unlabelled, labelled], 0)
        with tf.GradientTape() as tape:
            one, two = (self.head(self.encoder(self.augment(x, training=True))) for _ in range(2))
            alike = tf.matmul(tf.nn.l2_normalize(one, 1), tf.nn.l2_normalize(two, 1), transpose_b=True)
            loss = tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(
                    tf.range(tf.shape(x)[0]), alike, from_logits=True
                )
            )
        weights = [*self.encoder.trainable_weights, *self.head.trainable_weights]
        self.apply(self.contrastive_optimizer, tape, loss, weights)
        with tf.GradientTape() as tape:
            said = self.probe(self.encoder(labelled))
            error = tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(labels, said, from_logits=True)
            )
        self.apply(self.probe_optimizer, tape, error, self.probe.trainable_weights)
        self.tracker.update_state(loss)
        self.probe_accuracy.update_state(labels, said)
        return {m.name: m.result() for m in self.metrics}


class Triplets(Structure):
    """Siamese: batches of three parts, none of which is a target."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = _network(3)

    def loss_of(self, data: Any) -> Any:
        anchor, same, other = (self.embedding(each) for each in data)
        near, far = (tf.reduce_sum((anchor - each) ** 2, -1) for each in (same, other))
        return tf.reduce_mean(tf.maximum(near - far + 0.5, 0.0))


class Metric(keras.Model):
    """Metric learning: a functional model of one sample, trained on pairs of batches, with the loss of compile."""

    traces = [0]  # noqa: RUF012  # There is one model a process.

    def train_step(self, data: Any) -> Any:
        self.traces[0] += 1
        data = data[0] if isinstance(data, tuple) else data
        anchors, positives = data[0], data[1]
        with tf.GradientTape() as tape:
            alike = tf.matmul(self(anchors, training=True), self(positives, training=True), transpose_b=True)
            loss = self.compute_loss(y=tf.range(tf.shape(anchors)[0]), y_pred=alike)
        descend(self.optimizer, tape, loss, self.trainable_variables)
        return {"loss": loss}


class NestedLogs(Subclassed):
    """Returns logs in dictionaries within dictionaries.

    Args:
        by_metric: Whether they are `{m.name: m.result() for m in self.metrics}`, of which one is those of compile.
    """

    def __init__(self, *, by_metric: bool) -> None:
        super().__init__()
        self.by_metric = by_metric
        self.traces = [0]

    def train_step(self, data: Any) -> Any:
        self.traces[0] += 1
        x, y = data
        loss, said = supervised(self, x, x, y)
        results = self.compute_metrics(x, y, said)
        if self.by_metric:
            return {m.name: m.result() for m in self.metrics}
        return {"loss": loss, "more": {"accuracy": results["accuracy"], "least": tf.reduce_min(said)}}


if keras.backend.backend() == "jax":
    from tests.ways import jax_classes

    Autoencoder = jax_classes.Autoencoder  # type: ignore[misc]
