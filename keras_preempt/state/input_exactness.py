"""What the log says about how exactly the training input will continue after a restart.

Before the first step nothing is drawn to find out: shuffles and their seeds, random operations, and the order of
elements are read from the pipeline, and Python code is searched for draws from a global random state. What else that
code does cannot be seen; the log then names it as a condition. Python's and NumPy's global random states are kept, but
data is drawn some batches ahead of training, so the saved states do not belong to the batch that training goes on with;
where a pipeline draws nothing ahead, they do: TensorFlow draws ahead by itself, unless it is told not to.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import keras

from keras_preempt.backend import pipelines
from keras_preempt.backend.keras import data_code, py_batches
from keras_preempt.backend.keras.input_feed import InputFeed, changes_itself
from keras_preempt.backend.operations import Does, Ingredient
from keras_preempt.process.words import counted
from keras_preempt.state.plain import has_state_methods
from keras_preempt.state.py_dataset import draws_globally

_STATELESS = (
    "use tf.random.stateless_* there, with a number for each sample as its seed, as from "
    "tf.data.Dataset.zip((data, tf.data.Dataset.random(seed=...)))"
)

_OWN_GENERATOR = (
    "Give it a generator of its own, such as np.random.default_rng(seed), and in a map seed that with a number of "
    "the sample"
)

_SEED_BY_INDEX = (
    "Seed what is random in __getitem__ with its index and the number of the epoch, as in "
    "np.random.default_rng((epoch, index))"
)

_OWN_CLASS = (
    "Make the batches in a keras.utils.PyDataset of your own, each from its index and the number of the epoch, or by "
    "tf.data"
)

_HOOKS = "on_epoch_begin or on_epoch_end, and what these change is lost in a restart"

_GLOBAL = "draws from Python's or NumPy's global random state, some batches ahead of training"


@dataclass(frozen=True)
class InputExactness:
    """How exactly the data of a fit continues after a restart."""

    doubts: tuple[tuple[str, str], ...]  # What a restart cannot repeat, and what to do about it.
    condition: str  # What it depends on and cannot be seen, as the end of "exact if ..."; empty for nothing.
    how: str  # How the training data continues, as the end of "the input continues ...".


def input_exactness(feed: InputFeed, validation: object = None) -> InputExactness:
    """Returns how exactly the input continues: the training data, and the `validation_data` as it was passed to fit."""
    parts, validated = _ingredients(feed.dataset), _ingredients(validation)
    in_python = _in_python(parts) or feed.is_coded
    whose = ["training data"] if in_python else []
    is_array = hasattr(validation, "shape") or isinstance(validation, (tuple, list, dict))
    is_code = validation is not None and not is_array and not isinstance(validation, Generator)
    if _in_python(validated) or (is_code and not pipelines.pipelines_of(validation)):
        whose.append("validation data")
    condition = (
        f"the Python code of the {' and of the '.join(whose)} gives the same again when it is asked again"
        if whose
        else ""
    )
    if condition and feed.in_workers:
        condition += ", also in worker processes that have made no batch before"
    if feed.by_state:
        condition += ", and the state_dict() of its dataset holds all that the batches depend on"
    doubts = (
        *_doubts_of_pipelines(parts, "training data"),
        *_doubts_of_training(feed, parts),
        *_doubts_of_pipelines(validated, "validation data"),
        *_doubts_of_validation(validation, validated),
    )
    return InputExactness(doubts, condition, _how(feed, in_python=in_python))


def _how(feed: InputFeed, *, in_python: bool) -> str:
    if feed.redraws:
        return "by replay of its epoch: the batches already used are drawn again and dropped"
    if feed.by_state:
        return "from what the state_dict() of its loader gave"
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
    if in_python or feed.is_shared or feed.why_replayed or feed.draws_early:
        because = f", since {feed.why_replayed}" if feed.why_replayed else ""
        return f"by replay{because}: the batches already used are drawn again and dropped"
    return "from the saved state of its iterator, or by replay where TensorFlow cannot save that"


def _ingredients(data: object) -> list[Ingredient]:
    return [part for pipeline in pipelines.pipelines_of(data) for part in pipelines.ingredients(pipeline)]


def _in_python(parts: Sequence[Ingredient]) -> bool:
    return any(part.does is Does.PYTHON for part in parts)


def has_python_code(feed: InputFeed) -> bool:
    """Whether Python code makes the training data, as far as that shows; True if the pipeline is unknown."""
    return not feed.pipelines or _in_python(_ingredients(feed.dataset))


def _doubts_of_pipelines(parts: Sequence[Ingredient], data: str) -> Iterator[tuple[str, str]]:
    shuffles = [part for part in parts if part.seeded is False and part.does is Does.ORDER]
    if shuffles:
        have = "has" if len(shuffles) == 1 else "have"
        yield (
            f"{counted(len(shuffles), 'shuffle')} of the {data} {have} no seed, so that a restart cannot repeat the "
            "order of the epochs after it",
            "Pass shuffle(..., seed=...), or call keras.utils.set_random_seed before the dataset is made",
        )
    if unordered := " ".join(part.name for part in parts if not part.ordered):
        kind = "an interleave" if "Interleave" in unordered else "a map" if "Map" in unordered else "a part"
        yield (
            f"the {data} arrives in whatever order it is ready, which differs each time: it has {kind} whose order is "
            "free (deterministic=False, or shuffle_files=True of tensorflow_datasets)",
            "Leave out deterministic=False or shuffle_files=True, and shuffle the samples with a seed",
        )
    draws = [part for part in parts if part.does is Does.DRAW]
    without_seed = {f"{part.name} in {part.where}" for part in draws if not part.seeded}
    parallel = {f"{part.name} in {part.where}" for part in draws if part.seeded and part.parallel}
    changing = {part.where for part in parts if part.where and part.does in (Does.GENERATE, Does.CHANGE)}
    if without_seed:
        yield (
            f"the {data} is changed by random operations without a seed ({', '.join(sorted(without_seed))}), whose "
            "state cannot be saved",
            "Pass seed=..., or call keras.utils.set_random_seed before the dataset is made, and leave out "
            f"num_parallel_calls in the map that draws; or {_STATELESS}",
        )
    if parallel:
        yield (
            f"the {data} is changed by random operations that are run in parallel ({', '.join(sorted(parallel))}), "
            "so that it is left to chance which sample gets which number",
            f"Leave out num_parallel_calls in the map that draws; or {_STATELESS}",
        )
    if changing:
        yield (
            f"the {data} is changed by a variable, such as that of a random generator or of a layer (in "
            f"{', '.join(sorted(changing))}), whose state cannot be saved",
            f"Move random layers into the model, where their seeds are saved; or {_STATELESS}",
        )


def _doubts_of_training(feed: InputFeed, parts: Sequence[Ingredient]) -> Iterator[tuple[str, str]]:
    if feed.is_shared and feed.batches is None:
        yield (
            "the length of the training data is not known, so that Keras finds its end by a step that fails, and with "
            "several replicas it is left to chance which of them count that step",
            "Set the length, by dataset.apply(tf.data.experimental.assert_cardinality(n)), or pass steps_per_epoch",
        )
    if feed.is_shared and feed.is_generator:
        yield (
            "Keras takes batches from the Python generator to build the model on several replicas, an unknown number "
            "ahead, and drops them",
            "Pass a tf.data.Dataset or a keras.utils.PyDataset",
        )
    dataset = feed.py_dataset
    if (name := feed.changes_itself) and not (dataset is not None and has_state_methods(dataset)):
        if _is_of_keras(getattr(feed.epoch_iterator.data_adapter, "py_dataset", None)):
            yield f"{name}, a class of Keras, has {_HOOKS}", _OWN_CLASS
        else:
            yield (
                f"{name} has {_HOOKS}",
                "Give it get_state(), which returns plain data, and set_state(state); and do not pass steps_per_epoch",
            )
    elif py_batches.pass_goes_on(feed.epoch_iterator):
        yield (
            "with steps_per_epoch, Keras restarts the workers of a PyDataset in each epoch, after however many batches "
            "they happen to have fetched",
            "Leave out steps_per_epoch, or let the PyDataset have workers=1",
        )
    if where := data_code.global_draw(*feed.in_workers):
        yield (
            "the code of the training data draws from Python's or NumPy's global random state of its worker processes, "
            f"which begin anew after a restart (in {where})",
            'Seed it with the index of the sample and the epoch, or pass PreemptionCallback(input_state="replay")',
        )
    if where := _global_draw(feed, parts):
        if dataset is None:
            yield f"the Python code of the training data {_GLOBAL} (in {where})", _OWN_GENERATOR
        else:
            yield f"{type(dataset).__name__} {_GLOBAL} (in {where})", _SEED_BY_INDEX


def _global_draw(feed: InputFeed, parts: Sequence[Ingredient]) -> str:
    """Returns where Python code draws from a global random state, ahead of training; empty for nowhere."""
    if feed.py_dataset is not None:
        return draws_globally(feed.py_dataset)
    if not _draws_ahead(feed, parts):
        return ""
    code = [part.code for part in parts if part.does is Does.PYTHON]
    if feed.is_generator:
        code.append(getattr(feed.epoch_iterator.data_adapter, "generator", None))
    code += data_code.given_to_grain(feed.passed)
    return data_code.global_draw(*code)


def _draws_ahead(feed: InputFeed, parts: Sequence[Ingredient]) -> bool:
    """Whether batches are drawn ahead of training, or may be."""
    own = [part.name for part in parts if not part.where]
    return not own or feed.is_shared or pipelines.draws_ahead(feed.dataset, own)


def _doubts_of_validation(data: object, parts: Sequence[Ingredient]) -> Iterator[tuple[str, str]]:
    """A validation that was interrupted is repeated, with a global random state that it has changed already."""
    if isinstance(data, keras.utils.PyDataset):
        if name := changes_itself(data):
            yield (
                f"{name} has {_HOOKS}, also of validation data with get_state()",
                "Let each batch of the validation data depend on its index alone",
            )
        elif where := draws_globally(data):
            yield f"{type(data).__name__} {_GLOBAL} (in {where})", _SEED_BY_INDEX
        return
    if isinstance(data, Generator):
        yield (
            "each validation continues in the Python generator, an unknown number of batches after the previous one",
            "Pass a tf.data.Dataset or a keras.utils.PyDataset as validation_data",
        )
    code = [part.code for part in parts if part.code]
    if where := data_code.global_draw(*code, *data_code.given_to_grain(data)):
        yield f"the Python code of the validation data {_GLOBAL} (in {where})", _OWN_GENERATOR


# -- What shows later ----------------------------------------------------------------------------------------


def drew_globally(feed: InputFeed) -> str:
    """Returns what it means that a replay has drawn from a global random state, as the end of "NOT exact: ...".

    Empty if that repeats what training has drawn, or if it was said before the first step.
    """
    parts = _ingredients(feed.dataset)
    if not _draws_ahead(feed, parts) or _global_draw(feed, parts):
        return ""
    return (
        "the Python code of the training data does not give the same again: it draws from Python's or NumPy's global "
        "random state, some batches ahead of training. Give it a generator of its own, such as "
        "np.random.default_rng(seed)"
    )


def gave_others(feed: InputFeed, of: str) -> str:
    """Returns why a restart may see other batches than were given in an epoch or validation that has just ended.

    It comes with what to do about it; empty if nothing was found, or it was said before.
    """
    dataset = feed.py_dataset
    if dataset is None or not feed.asked.end_epoch(feed.batches):
        return ""
    if feed.changes_itself or (of == "epoch" and has_state_methods(dataset)):
        return ""
    cure = (
        f"{_SEED_BY_INDEX}; or give the dataset get_state(), which returns plain data, and set_state(state)"
    )
    if of == "validation":
        cure = "Let each batch depend on its index alone"
    elif _is_of_keras(dataset):
        cure = _OWN_CLASS
    return (
        f"{type(dataset).__name__} gave other batches in the first {of} than when Keras asked for the same ones before "
        f"it, and a restart may lose what made them differ. {cure}"
    )


def _is_of_keras(dataset: object) -> bool:
    """Whether the class of a dataset is Keras' own, to which nobody adds methods, as that of `ImageDataGenerator`."""
    return type(dataset).__module__.startswith("keras.")
