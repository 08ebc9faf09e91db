"""What the log says before the first step about how exactly the training input will continue after a restart.

It is found without drawing anything from the pipeline: its shuffles and their seeds, the random operations in its
functions, and whether it keeps its elements in order. What Python code does cannot be seen; the promise then names the
condition.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import keras

from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.backend.seam import backend
from keras_preempt.backend.seam_of_input import Does, Ingredient
from keras_preempt.process.words import counted
from keras_preempt.state import py_dataset, python_data


@dataclass(frozen=True)
class InputPromise:
    """How exactly the data of a fit continues.

    Attributes:
        doubts: What a restart cannot repeat, and what to do about it.
        condition: What it depends on and cannot be seen, as the end of "exact if ..."; empty for nothing.
        how: How the training data continues, as the end of "the input continues ...".
    """

    doubts: tuple[tuple[str, str], ...]
    condition: str
    how: str

    @property
    def exact(self) -> bool:
        """Whether nothing known speaks against it."""
        return not self.doubts

    def __str__(self) -> str:
        """Says why, or why not."""
        if self.doubts:
            return "; and ".join(f"{what}. {cure}" for what, cure in self.doubts)
        return self.how if not self.condition else f"{self.how}; exact if {self.condition}"


def promise(feed: InputFeed, validation: object = None) -> InputPromise:
    """Returns how exactly the input will continue after a restart.

    Args:
        feed: The training data.
        validation: The `validation_data` of the fit, as it was passed; it is drawn afresh in each validation.
    """
    several = feed.is_shared
    parts, validated = _ingredients(feed.dataset), _ingredients(validation)
    in_code = python_data.doubt(feed, parts), python_data.doubt_of_validation(validation, validated)
    found = [
        *_doubts(parts, "training data"),
        *_doubts_of_source(feed, several),
        *_doubts(validated, "validation data"),
        *_doubts_of_validation(validation),
        *filter(None, in_code),
    ]
    in_python = _in_python(parts) or (not feed.pipelines and not feed.is_indexed)
    whose = [
        data
        for data, python in (
            ("training data", in_python),
            ("validation data", _in_python(validated) or _is_code(validation)),
        )
        if python
    ]
    condition = (
        f"the Python code of the {' and of the '.join(whose)} gives the same again when it is asked again"
        if whose
        else ""
    )
    return InputPromise(
        tuple(found), condition, _how(feed, replayed=in_python or several or bool(feed.why_replayed))
    )


def _how(feed: InputFeed, *, replayed: bool) -> str:
    if feed.is_indexed:
        return "in the order of its epoch, of which nothing is drawn again"
    if feed.py_dataset is not None:
        return (
            "in the order of its epoch: the batches already used are drawn again and dropped, unless training has "
            "shown that the others do not depend on them"
        )
    if feed.grain is not None:
        return "from the state of its Grain iterator"
    if feed.snapshots is not None:
        return "from a snapshot of its iterator: the batches drawn since then are drawn again and dropped"
    if replayed:
        because = f", since {feed.why_replayed}" if feed.why_replayed else ""
        return f"by replay{because}: the batches already used are drawn again and dropped"
    return "from the saved state of its iterator, or by replay where TensorFlow cannot save that"


def _in_python(parts: Sequence[Ingredient]) -> bool:
    return any(part.does is Does.PYTHON for part in parts)


def _is_code(validation: object) -> bool:
    """Whether validation data is an object whose Python code makes the batches, and no pipeline or arrays."""
    if validation is None or backend().datasets.pipelines_of(validation):
        return False
    is_array = hasattr(validation, "shape") or isinstance(validation, (tuple, list, dict))
    return not is_array and not isinstance(validation, Generator)


def drew_globally(feed: InputFeed) -> str:
    """Returns what it means that a replay has drawn from a global random state, as the end of "NOT exact: ...".

    Empty if that repeats what training has drawn, or if the promise has said so.
    """
    parts = _ingredients(feed.dataset)
    if not python_data.draws_ahead(feed, parts) or python_data.doubt(feed, parts) is not None:
        return ""
    return (
        "the Python code of the training data does not give the same again: it draws from Python's or NumPy's global "
        "random state, some batches ahead of training. Give it a generator of its own, such as "
        "np.random.default_rng(seed)"
    )


def has_python_code(feed: InputFeed) -> bool:
    """Whether Python code makes the training data, as far as that shows; True if the pipeline is unknown."""
    return not feed.pipelines or _in_python(_ingredients(feed.dataset))


def _ingredients(data: object) -> list[Ingredient]:
    datasets = backend().datasets
    return [part for pipeline in datasets.pipelines_of(data) for part in datasets.ingredients(pipeline)]


_STATELESS = (
    "use tf.random.stateless_* there, with a number for each sample as its seed, as from "
    "tf.data.Dataset.zip((data, tf.data.Dataset.random(seed=...)))"
)


def _doubts(parts: Sequence[Ingredient], data: str) -> Iterator[tuple[str, str]]:
    shuffles = [part for part in parts if part.seeded is False and part.does is Does.ORDER]
    if shuffles:
        have = "has" if len(shuffles) == 1 else "have"
        yield (
            f"{counted(len(shuffles), 'shuffle')} of the {data} {have} no seed, so that a restart cannot repeat the "
            "order of the epochs after it",
            "Pass shuffle(..., seed=...), or call keras.utils.set_random_seed before the dataset is made",
        )
    if unordered := [part.name for part in parts if not part.ordered]:
        yield (
            f"the {data} comes in the order in which it is ready, which is another one each time: it has "
            f"{_kind(unordered)} whose order is free (deterministic=False, or shuffle_files=True of "
            "tensorflow_datasets)",
            "Leave out deterministic=False or shuffle_files=True, and shuffle the samples with a seed",
        )
    draws = [part for part in parts if part.does is Does.DRAW]
    without_seed = [part for part in draws if not part.seeded]
    parallel = [part for part in draws if part.seeded and part.parallel]
    kept = [part for part in parts if part.where and part.does in (Does.GENERATE, Does.CHANGE)]
    if without_seed:
        yield (
            f"the {data} is changed by random operations without a seed ({_listed(without_seed)}), whose state "
            "cannot be saved",
            "Pass seed=..., or call keras.utils.set_random_seed before the dataset is made, and leave out "
            f"num_parallel_calls in the map that draws; or {_STATELESS}",
        )
    if parallel:
        yield (
            f"the {data} is changed by random operations that are run in parallel ({_listed(parallel)}), which "
            "sample gets which number being left to chance",
            f"Leave out num_parallel_calls in the map that draws; or {_STATELESS}",
        )
    if kept:
        yield (
            f"the {data} is changed by a variable, such as that of a random generator or of a layer (in "
            f"{_listed(kept, named=False)}), whose state cannot be saved",
            f"Move random layers into the model, where their seeds are saved; or {_STATELESS}",
        )


def _listed(parts: Sequence[Ingredient], *, named: bool = True) -> str:
    return ", ".join(sorted({f"{part.name} in {part.where}" if named else part.where for part in parts}))


def _kind(unordered: Sequence[str]) -> str:
    """Returns what of some datasets may hand out its elements in another order, in words."""
    if any("Interleave" in name for name in unordered):
        return "an interleave"
    return "a map" if any("Map" in name for name in unordered) else "a part"


def _doubts_of_source(feed: InputFeed, several: bool) -> Iterator[tuple[str, str]]:
    if several and feed.batches is None:
        yield (
            "the length of the training data is not known, so that Keras finds its end by a step that fails, and with "
            "several replicas it is left to chance which of them count that step",
            "Tell the length, by dataset.apply(tf.data.experimental.assert_cardinality(n)), or pass steps_per_epoch",
        )
    if several and feed.is_generator:
        yield (
            "Keras takes batches from the Python generator to build the model on several replicas, an unknown number "
            "ahead, and drops them",
            "Pass a tf.data.Dataset or a keras.utils.PyDataset",
        )
    if found := py_dataset.doubt(feed):
        yield found


def _doubts_of_validation(data: object) -> Iterator[tuple[str, str]]:
    if isinstance(data, Generator):
        yield (
            "each validation goes on in the Python generator an unknown number of batches after the one before",
            "Pass a tf.data.Dataset or a keras.utils.PyDataset as validation_data",
        )
    elif isinstance(data, keras.utils.PyDataset) and (found := py_dataset.doubt_of_validation(data)):
        yield found
