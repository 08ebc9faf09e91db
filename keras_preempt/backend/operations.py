"""Operations of input pipelines and training steps, and what they do that a restart may not repeat."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class Does(enum.Enum):
    ORDER = "gives the order of a dataset"
    DRAW = "draws random numbers from a state of its own"
    GENERATE = "draws random numbers from a generator, whose state is a variable"
    CHANGE = "changes a variable or a table"
    PYTHON = "runs Python code"


@dataclass(frozen=True)
class Ingredient:
    """A dataset of an input pipeline, or an operation of a function in it.

    Attributes:
        name: TensorFlow's name for it, such as "ShuffleDataset", "RandomUniform" or "EagerPyFunc".
        where: The user's line that made it, such as "augment (train.py:34)", or the name of the function that it is
            part of; empty for a dataset of the pipeline itself.
        does: What it does that a restart may not repeat; None for nothing of the kind.
        seeded: Whether it has a seed; None if it takes none.
        ordered: Whether it hands out its elements in a fixed order.
        parallel: Whether the function is called for several elements at a time.
        code: The Python function that it runs, as TensorFlow keeps it; None if it runs none, or that is unknown.
    """

    name: str
    where: str
    does: Does | None
    seeded: bool | None
    ordered: bool
    parallel: bool = False
    code: Any = None


@dataclass(frozen=True)
class RandomOperation:
    """An operation of a training or validation step that draws from a state outside the variables of the model.

    Attributes:
        kind: TensorFlow's name for it, such as "RandomStandardNormal", "RngReadAndSkip" or "EagerPyFunc".
        where: The user's line that made it, such as "train_step (train.py:34)", or the layers that it is in.
        seeded: Whether it has a seed of its own or a global one, though its sequence starts over in every process. True
            for a generator's operation, whose state is a variable.
        resource: For an operation on a `tf.random.Generator`: the handle of its state, which `ModelState.holds` knows
            if it is saved; else None.
    """

    kind: str
    where: str
    seeded: bool = False
    resource: Any = None
