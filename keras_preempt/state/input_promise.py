"""What is said before the first step about how exactly the training input will continue after a restart.

What is known of a pipeline is seen without drawing anything from it: its shuffles and their seeds, the random
operations in its functions, and whether it keeps its elements in order. What Python code does cannot be seen; the
promise then names the condition.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence

import tensorflow as tf

from keras_preempt.keras_internals import InputFeed
from keras_preempt.state import py_dataset
from keras_preempt.tensorflow_internals import Ingredient, ingredients, pipelines_of

_DRAWS = re.compile(r"Random(?!Dataset)|TruncatedNormal|ParameterizedTruncatedNormal|Multinomial")
_VARIABLE = re.compile(r"Assign\w*VariableOp|Rng\w+|Stateful\w+|LookupTableInsert\w*|NonDeterministicInts")
_PYTHON = re.compile(r"(?:Eager)?PyFunc(?:Stateless)?")


def promise(feed: InputFeed, validation: object = None) -> tuple[bool, str]:
    """Says before training how exactly the input will continue after a restart.

    Args:
        feed: The training data.
        validation: The `validation_data` of the fit, as it was passed; it is drawn afresh in each validation.

    Returns:
        Whether it will be exact as far as can be seen, and why or why not, in words.
    """
    several = not isinstance(feed.dataset, tf.data.Dataset)
    parts = [part for pipeline in pipelines_of(feed.dataset) for part in ingredients(pipeline)]
    found = [
        *_doubts(parts, "training data"),
        *_doubts_of_source(feed, several),
        *_doubts_of_validation(validation),
    ]
    if found:
        return False, "; and ".join(found)
    in_python = any(_PYTHON.fullmatch(part.name) for part in parts)
    condition = "; exact if its Python code gives the same data again" if in_python else ""
    if in_python or several:
        return True, f"by replay: the batches already used are drawn again and dropped{condition}"
    return True, "from the saved state of its iterator, or by replay where TensorFlow cannot save that"


def has_python_code(feed: InputFeed) -> bool:
    """Whether Python code makes the training data, as far as can be seen; where nothing can be, it is said so."""
    pipelines = pipelines_of(feed.dataset)
    parts = (part for pipeline in pipelines for part in ingredients(pipeline))
    return not pipelines or any(_PYTHON.fullmatch(part.name) for part in parts)


def _doubts(parts: Sequence[Ingredient], data: str) -> Iterator[str]:
    shuffles = [part for part in parts if part.seeded is False and _gives_order(part)]
    if shuffles:
        yield (
            f"{len(shuffles)} shuffle(s) of the {data} have no seed, so that a restart cannot repeat the "
            "order of the epochs after it. Pass shuffle(..., seed=...), or call "
            "keras.utils.set_random_seed before the dataset is made"
        )
    if not all(part.ordered for part in parts):
        yield (
            f"the {data} comes in the order in which it is ready (deterministic=False), which is another one "
            "each time. Leave out deterministic=False"
        )
    draws = [part for part in parts if part.function and _DRAWS.match(part.name)]
    drawn = [part for part in draws if not _gives_order(part) and (not part.seeded or part.parallel)]
    kept = [part for part in parts if part.function and _VARIABLE.fullmatch(part.name)]
    if drawn or kept:
        where = ", ".join(sorted({part.function for part in drawn or kept}))
        what = (
            "random operations that have no seed or are run in parallel"
            if drawn
            else "a variable, such as that of a random generator or of a layer"
        )
        yield (
            f"the {data} is changed by {what} (in {where}), whose state cannot be saved. Use "
            "tf.random.stateless_* there, with a number for each sample as its seed, as from "
            "tf.data.Dataset.zip((data, tf.data.Dataset.random(seed=...)))"
        )


def _gives_order(part: Ingredient) -> bool:
    return part.name in ("ShuffleDataset", "RandomDataset", "RandomShuffle")


def _doubts_of_source(feed: InputFeed, several: bool) -> Iterator[str]:
    if several and feed.batches is None:
        yield (
            "the length of the training data is not known, so that Keras finds its end by a step that fails, and with "
            "several replicas it is left to chance which of them count that step. Tell the length, by "
            "dataset.apply(tf.data.experimental.assert_cardinality(n)), or pass steps_per_epoch"
        )
    if several and feed.is_generator:
        yield (
            "Keras takes batches from the Python generator to build the model on several replicas, an unknown number "
            "ahead, and drops them. Pass a tf.data.Dataset or a keras.utils.PyDataset"
        )
    if found := py_dataset.doubt(feed):
        yield found


def _doubts_of_validation(data: object) -> Iterator[str]:
    if isinstance(data, tf.data.Dataset):
        yield from _doubts([*ingredients(data)], "validation data")
    elif isinstance(data, Generator):
        yield (
            "each validation goes on in the Python generator an unknown number of batches after the one before. Pass "
            "a tf.data.Dataset or a keras.utils.PyDataset as validation_data"
        )
