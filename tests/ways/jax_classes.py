"""Models with train steps of their own as JAX needs them: without side effects, with the state passed in and out.

Each has the name of its counterpart for TensorFlow in `model_classes` or `structure_classes`, which gives it to the
catalogue where Keras runs on JAX.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import keras

from tests.ways.subclassed import TwoNetworks, WithNoise

layers, ops = keras.layers, keras.ops

State = tuple[Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any]]
"""The values of the trainable, the other, the optimizer's and the metrics' variables."""


class Stateless:
    """A part of a model whose step is written with side effects, which are collected.

    The model says in `losses_of(data)` what it minimizes, and updates its metrics there.
    """

    def gradients(self: Any, state: State, data: Any) -> tuple[Sequence[Any], Any, State]:
        """Returns the gradients of `losses_of`, its logs, and the state after it."""

        def loss_of(values: Sequence[Any]) -> Any:
            groups = (self.trainable_variables, self.non_trainable_variables, self.metrics_variables)
            pairs = [
                pair
                for group, held in zip(groups, (values, state[1], state[3]), strict=True)
                for pair in zip(group, held, strict=True)
            ]
            with keras.StatelessScope(state_mapping=pairs) as scope:
                loss, logs = self.losses_of(data)
            others = [_now(scope, pair) for pair in zip(groups[1], state[1], strict=True)]
            metrics = [_now(scope, pair) for pair in zip(groups[2], state[3], strict=True)]
            return loss, (logs, (others, metrics))

        (_, (logs, (others, metrics))), found = jax.value_and_grad(loss_of, has_aux=True)(state[0])
        return found, logs, (state[0], others, state[2], metrics)

    def train_step(self: Any, state: State, data: Any) -> tuple[Any, State]:
        """Takes one step of the optimizer of compile."""
        if hasattr(self, "traces"):
            self.traces[0] += 1
        found, logs, (trained, others, slots, metrics) = self.gradients(state, data)
        trained, slots = self.optimizer.stateless_apply(slots, found, trained)
        return logs, (trained, others, slots, metrics)


def _now(scope: Any, pair: tuple[Any, Any]) -> Any:
    variable, before = pair
    now = scope.get_current_value(variable)
    return before if now is None else now


class Noisy(Stateless, WithNoise):
    """Its own train_step, with noise from its own seed generator, and its own metric."""

    def losses_of(self, data: Any) -> Any:
        """Returns the loss and the logs."""
        x, y = data
        noise = keras.random.normal(ops.shape(x), stddev=0.1, seed=self.seed)
        predicted = self(x + noise, training=True)
        loss = self.compute_loss(x, y, predicted)
        self.noise.update_state(noise)
        self._loss_tracker.update_state(loss)
        return loss, {**self.compute_metrics(x, y, predicted), "noise": self.noise.result()}


class Autoencoder(Stateless, keras.Model):
    """A VAE: an encoder and a decoder, two trackers, no call()."""

    def __init__(self) -> None:
        super().__init__()
        self.traces = [0]
        self.encoder, self.decoder = (
            keras.Sequential([keras.Input((4,)), layers.Dense(6, activation="relu"), layers.Dense(width)])
            for width in (8, 4)
        )
        self.seed_generator = keras.random.SeedGenerator(3)
        self.tracker, self.distance = keras.metrics.Mean(name="loss"), keras.metrics.Mean(name="distance")
        self.built = True

    @property
    def metrics(self) -> Any:
        return [self.tracker, self.distance]

    def losses_of(self, data: Any) -> Any:
        """Returns the loss and the logs."""
        x = data[0] if isinstance(data, tuple) else data
        mean, spread = ops.split(self.encoder(x), 2, axis=-1)
        sample = mean + ops.exp(0.5 * spread) * keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        distance = ops.mean((self.decoder(sample) - x) ** 2)
        loss = distance - 0.1 * ops.mean(1 + spread - mean**2 - ops.exp(spread))
        self.tracker.update_state(loss)
        self.distance.update_state(distance)
        return loss, {each.name: each.result() for each in self.metrics}


class Adversarial(Stateless, TwoNetworks):
    """Keras hands on the state of the optimizer of compile, which is not used.

    The variables of the others are attributes of the model, so that they are among those that are not trained.
    """

    def compile(self, built: bool) -> None:
        super().compile(built)
        self.slots = [*self.first_optimizer.variables, *self.second_optimizer.variables]

    def losses_of(self, data: Any) -> Any:
        """Returns the loss and the logs."""
        x, y = data
        loss = self.loss_fn(y, self(x, training=True))
        self.mean.update_state(loss)
        return loss, {"loss": self.mean.result()}

    def train_step(self, state: State, data: Any) -> tuple[Any, State]:
        """Trains the second network to a smaller loss, then the first to a larger one."""
        logs: Any = {}
        for network, optimizer, sign in self.turns():
            found, logs, (trained, others, slots, metrics) = self.gradients(state, data)
            at = _places(network.trainable_variables, self.trainable_variables)
            of_optimizer = _places(optimizer.variables, self.non_trainable_variables)
            new, kept = optimizer.stateless_apply(
                [others[n] for n in of_optimizer], [sign * found[n] for n in at], [trained[n] for n in at]
            )
            state = (_with(trained, at, new), _with(others, of_optimizer, kept), slots, metrics)
        return logs, state


def _places(some: Sequence[Any], among: Sequence[Any]) -> list[int]:
    numbers = {id(variable): number for number, variable in enumerate(among)}
    return [numbers[id(variable)] for variable in some]


def _with(values: Sequence[Any], at: Sequence[int], new: Sequence[Any]) -> list[Any]:
    changed = dict(zip(at, new, strict=True))
    return [changed.get(number, value) for number, value in enumerate(values)]
