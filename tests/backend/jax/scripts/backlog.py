"""Makes steps of a stand-in for a model; prints how many of them were waited for after each."""

from __future__ import annotations

import sys
from typing import Any

from keras_preempt.backend.jax import backlog


class Array:
    """Stands for an array of JAX, which `jax.block_until_ready` asks as well."""

    def __init__(self, waited: list[int], step: int) -> None:
        self._waited, self._step = waited, step

    def block_until_ready(self) -> Array:
        self._waited.append(self._step)
        return self


class Model:
    def __init__(self, kind: str) -> None:
        self.steps = 0
        self.waited: list[int] = []
        self._kind = kind

    def train_function(self, state: Any, iterator: Any) -> Any:
        self.steps += 1
        array = Array(self.waited, self.steps)
        logs = {
            "arrays": {"loss": array},
            "nested": {"all": {"loss": array}},
            "numbers and arrays": {"rate": 0.5, "loss": array},
        }
        return logs[self._kind], state


def main() -> None:
    model = Model(sys.argv[1])
    end = backlog.bound(model)
    for _ in range(5):
        model.train_function(None, None)
        print(len(model.waited))
        assert model.waited == sorted(set(model.waited))  # The oldest, and each once.
    end()
    model.train_function(None, None)
    assert len(model.waited) == 3


if __name__ == "__main__":
    main()
