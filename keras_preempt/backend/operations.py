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

    `where` is the user's line that made it, such as "augment (train.py:34)", or the name of the function that it is in;
    empty for a dataset of the pipeline itself.
    """

    name: str  # Of TensorFlow, such as "ShuffleDataset", "RandomUniform" or "EagerPyFunc".
    where: str
    does: Does | None  # What a restart may not repeat.
    seeded: bool | None  # None if it takes no seed.
    ordered: bool  # Whether it gives its elements in a fixed order.
    parallel: bool = False  # Whether the function is called for several elements at a time.
    code: Any = None
    """The Python function that it runs, as TensorFlow keeps it; None if there is none, or it is unknown."""


@dataclass(frozen=True)
class RandomOperation:
    """An operation of a training or validation step that draws from a state outside the variables of the model.

    `seeded`: it has a seed of its own or a global one, though its sequence starts over in every process; True for a
    generator's operation, whose state is a variable. `resource`: the handle of the state of a `tf.random.Generator`,
    which `ModelState.holds` knows if it is saved.
    """

    kind: str  # TensorFlow's name for it, such as "RandomStandardNormal", "RngReadAndSkip" or "EagerPyFunc".
    where: str
    """The user's line that made it, such as "train_step (train.py:34)", or the layers that it is in."""

    seeded: bool = False
    resource: Any = None
