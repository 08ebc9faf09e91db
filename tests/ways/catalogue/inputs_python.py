"""Data that comes from arrays and from Python: NumPy, pandas, PyDataset, generators, PyTorch; and Grain's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.ways.catalogue import basics, inputs_grain
from tests.ways.catalogue.inputs_tfdata import GIVES_THE_SAME, forget_seeds, on_all
from tests.ways.way import MIRRORED, ONE, WORKERS, Exact, Warned, Way

if TYPE_CHECKING:
    from tests.ways.run import Run

STEPS, BATCH = basics.STEPS, basics.BATCH


def arrays(**options: Any) -> Callable[[Run], None]:
    def train(run: Run) -> None:
        run.fit(basics.model(run), *basics.samples(45), **{"batch_size": BATCH, **options})

    return train


def _weighted(run: Run) -> None:
    import numpy as np

    arrays(sample_weight=np.linspace(0.5, 2.0, 45))(run)


def _in_executions(run: Run) -> None:
    run.fit(basics.model(run, steps_per_execution=4), *basics.samples(45), batch_size=BATCH)


def _arrays_unseeded(run: Run) -> None:
    forget_seeds()
    arrays()(run)


def _tensors(run: Run) -> None:
    import tensorflow as tf

    x, y = map(tf.constant, basics.samples())
    run.fit(basics.model(run), x, y, batch_size=BATCH)


def _pandas(run: Run) -> None:
    import pandas as pd

    x, y = basics.samples()
    frame = pd.DataFrame(x, columns=list("abcd"))
    run.fit(basics.model(run), frame, pd.Series(y), batch_size=BATCH)


def batches(**options: Any) -> Any:
    """Returns a PyDataset of the samples."""
    import keras

    x, y = basics.samples()

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return STEPS

        def __getitem__(self, index: int) -> Any:
            rows = slice(index * BATCH, (index + 1) * BATCH)
            return x[rows], y[rows]

    return Batches(**options)


def py_dataset(make: Callable[[], Any], **fit: Any) -> Callable[[Run], None]:
    def train(run: Run) -> None:
        run.fit(basics.model(run), make(), **fit)

    return train


def _reshuffled(*, keeps: bool) -> Any:
    import numpy as np

    made = batches()
    x, y = basics.samples()
    order = np.arange(len(x))

    class Reshuffled(type(made)):  # type: ignore[misc]
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
    import numpy as np

    made = batches()

    class Noisy(type(made)):  # type: ignore[misc]
        def __getitem__(self, index: int) -> Any:
            x, y = made[index]
            return x + np.random.normal(size=x.shape), y

    return Noisy()


def _generator(seed: int) -> Any:
    import numpy as np

    x, y = basics.samples()
    rng = np.random.default_rng(seed)
    while True:
        rows = rng.integers(0, len(x), BATCH)
        yield x[rows], y[rows]


def _generator_globally() -> Any:
    import numpy as np

    x, y = basics.samples()
    while True:
        rows = np.random.randint(0, len(x), BATCH)
        yield x[rows], y[rows]


def generator(make: Callable[[], Any], **fit: Any) -> Callable[[Run], None]:
    def train(run: Run) -> None:
        run.fit(basics.model(run), make(), **fit)

    return train


def torch_loader(**options: Any) -> Callable[[Run], None]:
    def train(run: Run) -> None:
        import torch

        torch.manual_seed(3)
        data = torch.utils.data.TensorDataset(*map(torch.from_numpy, basics.samples()))
        run.fit(basics.model(run), torch.utils.data.DataLoader(data, batch_size=BATCH, **options))

    return train


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
        on_all(Exact()),
        strikes=THIRD_EPOCH,
        drawn=1,
    ),
    Way("arrays-in-order", "NumPy arrays, `shuffle=False`", arrays(shuffle=False), on_all(Exact()), drawn=1),
    Way(
        "arrays-by-batch",
        'NumPy arrays, `shuffle="batch"`, after `keras.utils.set_random_seed`',
        arrays(shuffle="batch"),
        on_all(Exact()),
        drawn=1,
    ),
    Way(
        "arrays-class-weight",
        "NumPy arrays with `class_weight`",
        arrays(class_weight={0: 1.0, 1: 2.0, 2: 0.5}),
        on_all(Exact()),
        drawn=1,
    ),
    Way("arrays-sample-weight", "NumPy arrays with `sample_weight`", _weighted, on_all(Exact()), drawn=1),
    Way(
        "arrays-steps",
        "NumPy arrays with `steps_per_epoch`, which continue in the next epoch",
        arrays(steps_per_epoch=2, epochs=5),
        on_all(Exact()),
        strikes=("batch 3", "batch 4"),
        drawn=1,
    ),
    Way(
        "arrays-split",
        "NumPy arrays with `validation_split`",
        arrays(validation_split=0.2),
        on_all(Exact()),
        strikes=("batch 6", "test 0"),
        drawn=4,
    ),
    Way(
        "arrays-executions",
        "NumPy arrays with `steps_per_execution`, which does not divide the steps of an epoch",
        _in_executions,
        on_all(Exact()),
        strikes=("batch 3",),
        drawn=1,
    ),
    Way(
        "arrays-unseeded",
        "NumPy arrays, shuffled, without a seed",
        _arrays_unseeded,
        on_all(
            Warned(
                "they are shuffled in a different order after a restart. Call `keras.utils.set_random_seed` first",
                "NOT exact.*have no seed",
            )
        ),
    ),
    Way("tensors", "tensors", _tensors, on_all(Exact())),
    Way("pandas", "pandas data frames", _pandas, on_all(Exact()), drawn=1),
    Way(
        "py-dataset",
        "`PyDataset`",
        py_dataset(batches),
        on_all(Exact(GIVES_THE_SAME)),
        strikes=THIRD_EPOCH,
        drawn=1,
    ),
    Way(
        "py-dataset-threads",
        "`PyDataset`, several threads",
        py_dataset(lambda: batches(workers=3)),
        on_all(Exact(GIVES_THE_SAME)),
        drawn=1,
    ),
    Way(
        "py-dataset-threads-steps",
        "the same with `steps_per_epoch`",
        py_dataset(lambda: batches(workers=3), steps_per_epoch=4),
        {
            ONE: Warned(
                "Keras starts its threads again in each epoch, and trains on what they have fetched by then. Leave it "
                "out",
                "NOT exact.*starts the workers of a PyDataset again",
            )
        },
        strikes=("batch 6",),
    ),
    Way(
        "py-dataset-processes",
        "`PyDataset`, several processes",
        py_dataset(lambda: batches(workers=2, use_multiprocessing=True)),
        {ONE: Exact(GIVES_THE_SAME), MIRRORED: Exact(GIVES_THE_SAME)},
        drawn=1,
    ),
    Way(
        "py-dataset-kept",
        "`PyDataset` with `on_epoch_end`, and with `get_state` and `set_state`",
        py_dataset(lambda: _reshuffled(keeps=True), shuffle=False),
        on_all(Exact("these two hold all that it changes")),
        strikes=THIRD_EPOCH,
        drawn=1,
    ),
    Way(
        "py-dataset-reshuffled",
        "`PyDataset` with `on_epoch_end`, without `get_state`",
        py_dataset(lambda: _reshuffled(keeps=False), shuffle=False),
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
        py_dataset(_noisy),
        {
            ONE: Warned(
                "it gives other data when it is asked again. Seed the numbers with the index and the epoch",
                "NOT exact.*two different batches",
            )
        },
    ),
    Way(
        "generator",
        "a Python generator, with `steps_per_epoch`",
        generator(lambda: _generator(3), steps_per_epoch=STEPS),
        {ONE: Exact("it yields the same after each start, for example with its own seeded random generator")}
        | dict.fromkeys((MIRRORED, WORKERS), _SHARED),
    ),
    Way(
        "generator-global",
        "a Python generator that draws from `np.random`",
        generator(_generator_globally, steps_per_epoch=STEPS),
        {
            ONE: Warned(
                "it draws ahead of training, and the restart says so. Give it `np.random.default_rng(seed)`",
                "NOT exact.*global random state",
                at_restart=True,
            )
        },
    ),
    *inputs_grain.WAYS,
    Way(
        "torch",
        "PyTorch `DataLoader`, shuffled, after `torch.manual_seed`",
        torch_loader(shuffle=True),
        on_all(Exact("nothing else draws from PyTorch's global random state")),
        needs=("torch",),
    ),
)
