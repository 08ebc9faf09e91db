"""Data that comes from arrays and from Python: NumPy, pandas, PyDataset, generators, PyTorch; and Grain's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.ways.catalogue import inputs_grain
from tests.ways.catalogue.basics import BATCH, STEPS, fitted, model, samples
from tests.ways.catalogue.inputs_tfdata import GIVES_THE_SAME, forget_seeds
from tests.ways.late import keras, np, tf
from tests.ways.way import MIRRORED, ONE, WORKERS, Exact, Run, Warned, Way, everywhere


def arrays(*, executions: int = 1, seeded: bool = True, **options: Any) -> Callable[[Run], None]:
    def train(run: Run) -> None:
        if not seeded:
            forget_seeds()
        made = model(run, steps_per_execution=executions)
        run.fit(made, *samples(45), **{"batch_size": BATCH, **options})

    return train


def _weighted(run: Run) -> None:
    arrays(sample_weight=np.linspace(0.5, 2.0, 45))(run)


def _tensors(run: Run) -> None:
    x, y = map(tf.constant, samples())
    run.fit(model(run), x, y, batch_size=BATCH)


def _pandas(run: Run) -> None:
    import pandas as pd

    x, y = samples()
    frame = pd.DataFrame(x, columns=list("abcd"))
    run.fit(model(run), frame, pd.Series(y), batch_size=BATCH)


def batches(**options: Any) -> Any:
    """Returns a PyDataset of the samples."""
    x, y = samples()

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return STEPS

        def __getitem__(self, index: int) -> Any:
            rows = slice(index * BATCH, (index + 1) * BATCH)
            return x[rows], y[rows]

    return Batches(**options)


def _reshuffled(*, keeps: bool) -> Any:
    x, y = samples()
    order = np.arange(len(x))

    class Reshuffled(type(batches())):  # type: ignore[misc]
        def __getitem__(self, index: int) -> Any:
            rows = order[index * BATCH : (index + 1) * BATCH]
            return x[rows], y[rows]

        def on_epoch_end(self) -> None:
            np.random.shuffle(order)

    class Kept(Reshuffled):
        def get_state(self) -> Any:
            return {"order": order}

        def set_state(self, state: Any) -> None:
            order[:] = state["order"]

    return Kept() if keeps else Reshuffled()


def _noisy() -> Any:
    class Noisy(type(batches())):  # type: ignore[misc]
        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(index)
            return x + random.random(), y

    return Noisy()


def _generator(seed: int) -> Any:
    x, y = samples()
    draws = np.random.default_rng(seed)
    while True:
        rows = draws.integers(0, len(x), BATCH)
        yield x[rows], y[rows]


def _generator_global() -> Any:
    x, y = samples()
    while True:
        rows = np.random.randint(0, len(x), BATCH)
        yield x[rows], y[rows]


def _torch(run: Run) -> None:
    import torch

    torch.manual_seed(3)
    data = torch.utils.data.TensorDataset(*map(torch.from_numpy, samples()))
    run.fit(model(run), torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True))


THIRD_EPOCH = ("batch 14",)

_SHARED = Warned(
    "Keras takes some batches from the generator to build the model, and drops them",
    "NOT exact.*Keras takes batches from the Python generator",
)

WAYS = (
    Way(
        "arrays",
        "NumPy arrays, shuffled, after `keras.utils.set_random_seed`",
        arrays(),
        strikes=THIRD_EPOCH,
        drawn=1,
    ),
    Way("arrays-in-order", "NumPy arrays, `shuffle=False`", arrays(shuffle=False), drawn=1),
    Way(
        "arrays-by-batch",
        'NumPy arrays, `shuffle="batch"`, after `keras.utils.set_random_seed`',
        arrays(shuffle="batch"),
        drawn=1,
    ),
    Way(
        "arrays-class-weight",
        "NumPy arrays with `class_weight`",
        arrays(class_weight={0: 1.0, 1: 2.0, 2: 0.5}),
        drawn=1,
    ),
    Way("arrays-sample-weight", "NumPy arrays with `sample_weight`", _weighted, drawn=1),
    Way(
        "arrays-steps",
        "NumPy arrays with `steps_per_epoch`, which continue in the next epoch",
        arrays(steps_per_epoch=2, epochs=5),
        strikes=("batch 3", "batch 4"),
        drawn=1,
    ),
    Way(
        "arrays-split",
        "NumPy arrays with `validation_split`",
        arrays(validation_split=0.2),
        strikes=("batch 6", "test 0"),
        drawn=4,
    ),
    Way(
        "arrays-executions",
        "NumPy arrays with `steps_per_execution`, which does not divide the steps of an epoch",
        arrays(executions=4),
        strikes=("batch 3",),
        drawn=1,
    ),
    Way(
        "arrays-unseeded",
        "NumPy arrays, shuffled, without a seed",
        arrays(seeded=False),
        everywhere(
            Warned(
                "they are shuffled in a different order after a restart. Call `keras.utils.set_random_seed` first",
                "NOT exact.*ha(?:s|ve) no seed",
            )
        ),
    ),
    Way("tensors", "tensors", _tensors),
    Way("pandas", "pandas data frames", _pandas, drawn=1),
    Way(
        "py-dataset",
        "`PyDataset`",
        fitted(batches),
        everywhere(Exact(GIVES_THE_SAME)),
        strikes=THIRD_EPOCH,
        drawn=1,
    ),
    Way(
        "py-dataset-threads",
        "`PyDataset`, several threads",
        fitted(lambda: batches(workers=3)),
        everywhere(Exact(GIVES_THE_SAME)),
        drawn=1,
    ),
    Way(
        "py-dataset-threads-steps",
        "the same with `steps_per_epoch`",
        fitted(lambda: batches(workers=3), steps_per_epoch=4),
        {
            ONE: Warned(
                "Keras starts its threads again in each epoch, and trains on what they have fetched by then. Leave it "
                "out",
                "NOT exact.*restarts the workers of a PyDataset",
            )
        },
        strikes=("batch 6",),
    ),
    Way(
        "py-dataset-processes",
        "`PyDataset`, several processes",
        fitted(lambda: batches(workers=2, use_multiprocessing=True)),
        {ONE: Exact(GIVES_THE_SAME), MIRRORED: Exact(GIVES_THE_SAME)},
        drawn=1,
    ),
    Way(
        "py-dataset-kept",
        "`PyDataset` with `on_epoch_end`, and with `get_state` and `set_state`",
        fitted(lambda: _reshuffled(keeps=True), shuffle=False),
        everywhere(Exact("these two hold all that it changes")),
        strikes=THIRD_EPOCH,
        drawn=1,
    ),
    Way(
        "py-dataset-reshuffled",
        "`PyDataset` with `on_epoch_end`, without `get_state`",
        fitted(lambda: _reshuffled(keeps=False), shuffle=False),
        {
            ONE: Warned(
                "what it changes between epochs is lost. Give it `get_state` and `set_state`",
                "NOT exact.*has on_epoch_begin or on_epoch_end",
            )
        },
    ),
    Way(
        "py-dataset-noisy",
        "`PyDataset` that draws random numbers in `__getitem__`",
        fitted(_noisy),
        {
            ONE: Warned(
                "it gives other data when it is asked again. Seed the numbers with the index and the epoch",
                "NOT exact.*global random state",
            )
        },
    ),
    Way(
        "generator",
        "a Python generator, with `steps_per_epoch`",
        fitted(lambda: _generator(3), steps_per_epoch=STEPS),
        {ONE: Exact("it yields the same after each start, for example with its own seeded random generator")}
        | dict.fromkeys((MIRRORED, WORKERS), _SHARED),
    ),
    Way(
        "generator-global",
        "a Python generator that draws from `np.random`",
        fitted(_generator_global, steps_per_epoch=STEPS),
        {
            ONE: Warned(
                "it draws ahead of training. Give it `np.random.default_rng(seed)`",
                r"NOT exact.*global random state.*\(in \w+ \(inputs_python.py:",
            )
        },
    ),
    *inputs_grain.WAYS,
    Way(
        "torch",
        "PyTorch `DataLoader`, shuffled, after `torch.manual_seed`",
        _torch,
        everywhere(Exact("nothing else draws from PyTorch's global random state")),
        needs=("torch",),
    ),
)
