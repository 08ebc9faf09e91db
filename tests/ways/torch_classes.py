"""Models with parts of torch, and with train steps of their own as torch has them: with `loss.backward()`.

`Adversarial` and `Noisy` have the names of their counterparts for TensorFlow in `model_classes`, which gives them to
the catalogue where Keras runs on torch.
"""

from __future__ import annotations

from typing import Any

import keras
import torch

from tests.ways.subclassed import Subclassed as Subclassed
from tests.ways.subclassed import TwoNetworks, WithNoise

layers = keras.layers


def wrapped() -> keras.Model:
    """A model of Keras with a module of torch in it, whose statistics are buffers and whose dropout draws globally."""
    module = torch.nn.Sequential(
        torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Dropout(0.3)
    )
    wrapper = keras.layers.TorchModuleWrapper(module, output_shape=(None, 6))
    return keras.Sequential([keras.Input((4,)), layers.Dense(5), wrapper, layers.Dense(3)])


class CompiledByHand(Subclassed):
    """Has a module that `torch.compile` has made, and a step that calls such a function, which draws."""

    def __init__(self) -> None:
        super().__init__()
        module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Dropout(0.3))
        self.hidden = keras.layers.TorchModuleWrapper(torch.compile(module))
        self.noisy = torch.compile(lambda x: x + 0.1 * torch.rand_like(x))

    def train_step(self, data: Any) -> Any:
        x, y = data
        return super().train_step((self.noisy(x), y))


class Seen(keras.metrics.Metric):
    """A metric whose result is a view of its variable, as that of Keras' FalsePositives is."""

    def __init__(self) -> None:
        super().__init__(name="seen")
        self.count = self.add_weight(shape=(1,), initializer="zeros", name="count")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.count.assign(self.count + keras.ops.mean(y_pred))

    def result(self) -> Any:
        return self.count.value[0]


class Measured(Subclassed):
    def compile(self, **options: Any) -> None:
        super().compile(**{**options, "metrics": [Seen()]})


class Drawing(Subclassed):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.own = torch.Generator().manual_seed(5)

    def train_step(self, data: Any) -> Any:
        x, y = data
        self.seen = self.seen + 1
        noise = torch.rand(x.shape) + torch.rand(x.shape, generator=self.own)
        return super().train_step((x / self.seen + 0.1 * noise, y))


class Noisy(WithNoise):
    def train_step(self, data: Any) -> Any:
        x, y = data
        noise = keras.random.normal(x.shape, stddev=0.1, seed=self.seed)
        if self.from_global:
            noise += keras.random.normal(x.shape, stddev=0.1)
        logs = super().train_step((x + noise, y))
        self.noise.update_state(noise)
        return {**logs, "noise": self.noise.result()}


class Backward(Subclassed):
    """As Keras' guide has it, with an optimizer of its own that its first step builds."""

    def __init__(self) -> None:
        super().__init__()
        self.mine = keras.optimizers.Adam(1e-2, name="mine")

    def train_step(self, data: Any) -> Any:
        x, y = data
        self.zero_grad()
        predicted = self(x, training=True)
        loss = self.compute_loss(x=x, y=y, y_pred=predicted)
        loss.backward()
        weights = list(self.trainable_weights)
        with torch.no_grad():
            self.mine.apply([weight.value.grad for weight in weights], weights)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


class Adversarial(TwoNetworks):
    """Trains both in a step."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        for network, optimizer, sign in self.turns():
            self.zero_grad()
            loss = self.loss_fn(y, self(x, training=True))
            (sign * loss).backward()
            weights = list(network.trainable_variables)
            with torch.no_grad():
                optimizer.apply([weight.value.grad for weight in weights], weights)
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}
