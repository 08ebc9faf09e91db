"""Whether the Python code of data draws random numbers that a restart does not draw again.

Python's and NumPy's global random states are kept. But data is drawn some batches ahead of training, so what was saved
does not belong to the batch that training goes on with. Where a pipeline draws nothing ahead, it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from keras_preempt.backend.keras import data_code
from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.backend.seam_of_input import Does, Ingredient

_OWN = (
    "Give it a generator of its own, such as np.random.default_rng(seed), and in a map seed that with a number of "
    "the sample"
)
_BY_INDEX = (
    "Seed what is random in __getitem__ with its index and the number of the epoch, as in "
    "np.random.default_rng((epoch, index))"
)


def doubt(feed: InputFeed, parts: Sequence[Ingredient]) -> tuple[str, str] | None:
    """Returns where the training data draws from a global random state, and what to do about it; None for nowhere.

    Args:
        feed: The training data.
        parts: What its pipelines are made of.
    """
    if feed.py_dataset is not None:
        return doubt_of_batches(feed.py_dataset)
    if not draws_ahead(feed, parts):
        return None
    code = [part.code for part in parts if part.does is Does.PYTHON]
    if feed.is_generator:
        code.append(getattr(feed.epoch_iterator.data_adapter, "generator", None))
    return _said("training data", data_code.global_draw(*code))


def doubt_of_validation(data: object, parts: Sequence[Ingredient]) -> tuple[str, str] | None:
    """Returns the same of validation data: a validation is repeated, with a state that it has changed already.

    Args:
        data: The `validation_data` of a fit.
        parts: What its pipelines are made of.
    """
    if isinstance(data, keras.utils.PyDataset):
        return None  # `py_dataset` tells of those.
    return _said("validation data", data_code.global_draw(*(part.code for part in parts if part.code)))


def doubt_of_batches(dataset: Any) -> tuple[str, str] | None:
    """Returns the same of a `keras.utils.PyDataset`."""
    kind = type(dataset)
    if not (where := data_code.global_draw(kind.__getitem__, owner=dataset)):
        return None
    return (
        f"{kind.__name__} draws from Python's or NumPy's global random state, some batches ahead of training "
        f"(in {where})",
        _BY_INDEX,
    )


def draws_ahead(feed: InputFeed, parts: Sequence[Ingredient]) -> bool:
    """Whether the batches of a training input are drawn ahead of training, or it is not known that they are not."""
    own = [part.name for part in parts if not part.where]
    return not own or feed.is_shared or any("Prefetch" in name or "Parallel" in name for name in own)


def _said(data: str, where: str) -> tuple[str, str] | None:
    if not where:
        return None
    return (
        f"the Python code of the {data} draws from Python's or NumPy's global random state, some batches ahead of "
        f"training (in {where})",
        _OWN,
    )
