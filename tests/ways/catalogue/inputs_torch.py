"""Data of PyTorch, where Keras runs on torch: every kind of `DataLoader`, and what draws from torch's generators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tests.ways.catalogue.basics import BATCH, STEPS, compiled, fitted, loader, model, samples, seeded
from tests.ways.late import keras, np
from tests.ways.way import ONE, Exact, Run, Way

SECOND_EPOCH = ("batch 9",)
EVERYWHERE = ("batch 0", "batch 5", "batch 1", "epoch 1", "batch 3")
"""Before the first step, before the last of an epoch, in the next, as one begins, and in the third."""

_ONCE = {ONE: Exact("the Python code of the data gives the same again")}


@functools.cache
def _classes() -> Any:
    """Returns datasets and samplers of a user's own; classes of torch, which not every test has."""
    import torch

    class Noisy(torch.utils.data.Dataset):
        """Draws from all three global generators for each sample."""

        def __len__(self) -> int:
            return STEPS * BATCH

        def __getitem__(self, index: int) -> Any:
            x, y = samples()
            noise = torch.rand(4).numpy() + np.random.rand(4).astype("float32")
            return x[index] + noise, y[index]

    class Plain(torch.utils.data.Dataset):
        asked = 0

        def __len__(self) -> int:
            return STEPS * BATCH

        def __getitem__(self, index: int) -> Any:
            x, y = samples()
            return x[index], y[index]

    class Stream(torch.utils.data.IterableDataset):
        def __init__(self, known: bool = False) -> None:
            self.known = known

        def __iter__(self) -> Any:
            yield from zip(*samples(), strict=True)

    class Resumable(torch.utils.data.IterableDataset):
        """Tells where it is; each worker process gives its share."""

        at = first = 0

        def __iter__(self) -> Any:
            info = torch.utils.data.get_worker_info()
            own, step = (info.id, info.num_workers) if info else (0, 1)
            self.at, self.first = self.first, 0
            for x, y in list(zip(*samples(), strict=True))[own::step][self.at :]:
                self.at += 1
                yield x, y

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.first = state["at"]

    class ByEpoch(torch.utils.data.Sampler):
        """As a DistributedSampler: another order in each epoch, which a callback sets."""

        epoch = 0

        def __len__(self) -> int:
            return STEPS * BATCH

        def __iter__(self) -> Any:
            yield from np.random.default_rng(self.epoch).permutation(STEPS * BATCH).tolist()

    return Noisy, Plain, Stream, ByEpoch, Resumable


def _loaded(kind: int, *given: Any, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        import torch

        dataset = _classes()[kind](*given)
        return torch.utils.data.DataLoader(dataset, **{"batch_size": BATCH, **options})

    return make


def _pinned(*given: Any, **options: Any) -> Any:
    """Returns a loader whose thread pins: also without a device, where torch asks `torch.accelerator` (not in 2.6)."""
    import torch

    accelerator: Any = torch.accelerator
    if not accelerator.is_available():
        accelerator.is_available = lambda: True
        accelerator.current_accelerator = lambda *_, **__: torch.device("cpu")
        accelerator.current_device_index = lambda: 0
        accelerator.set_device_index = lambda index: None
        torch.Tensor.pin_memory = torch.Tensor.clone
    return _loaded(*given, pin_memory=True, **options)()


def _by_epoch(run: Run) -> None:
    import torch

    _, plain, _, by_epoch, _ = _classes()
    sampler = by_epoch()

    class SetEpoch(keras.callbacks.Callback):
        keeps_state = False

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            sampler.epoch = epoch

    data = torch.utils.data.DataLoader(plain(), batch_size=BATCH, sampler=sampler)
    run.fit(model(run), data, callbacks=[SetEpoch()])


def _validated(**options: Any) -> Callable[[Run], None]:
    """Trains with a validation that is shuffled as well, from the same global generator."""
    return lambda run: run.fit(model(run), loader(**options), validation_data=loader(**options), epochs=4)


def _stateful(kind: int = 1, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        from torchdata.stateful_dataloader import StatefulDataLoader

        shuffled = {"shuffle": True} if kind == 1 else {}
        return StatefulDataLoader(_classes()[kind](), batch_size=BATCH, **shuffled, **options)

    return make


def _replayed(run: Run) -> None:
    run.options["input_state"] = "replay"
    run.fit(model(run), _loaded(0, shuffle=True, **_WORKERS)())


def _weighted() -> Any:
    import torch

    sampler = torch.utils.data.WeightedRandomSampler(np.linspace(1, 2, STEPS * BATCH), STEPS * BATCH)
    return loader(shuffle=False, sampler=sampler)


def _of_class(name: str, **options: Any) -> Callable[[Run], None]:
    def train(run: Run) -> None:
        from tests.ways import torch_classes

        run.fit(compiled(run, getattr(torch_classes, name), **options), loader(), validation_data=loader())

    return train


_WORKERS = {"num_workers": 2, "multiprocessing_context": "fork"}

WAYS = (
    Way("loader", "`DataLoader`, shuffled", fitted(loader), {ONE: Exact()}, EVERYWHERE),
    Way(
        "loader-in-order", "`DataLoader`, not shuffled", fitted(lambda: loader(shuffle=False)), {ONE: Exact()}
    ),
    Way(
        "loader-generator",
        "`DataLoader` with a `generator`",
        fitted(lambda: loader(generator=seeded(3))),
        {ONE: Exact()},
        EVERYWHERE,
    ),
    Way(
        "loader-steps",
        "`DataLoader` with `steps_per_epoch`, which continues in the next epoch",
        fitted(loader, steps_per_epoch=4, epochs=6),
        {ONE: Exact()},
        ("batch 1", "batch 3", "epoch 1", "batch 2", "batch 3"),
    ),
    Way(
        "loader-validated",
        "`DataLoader`, shuffled, with one for validation that is shuffled too",
        _validated(),
        {ONE: Exact()},
        ("batch 5", "test 0", "test_batch 2", "batch 9"),
    ),
    Way("loader-weighted", "`WeightedRandomSampler`", fitted(_weighted), {ONE: Exact()}, EVERYWHERE),
    Way(
        "loader-own-sampler",
        "a sampler whose `epoch` a callback sets",
        _by_epoch,
        _ONCE,
        EVERYWHERE,
    ),
    Way(
        "loader-noisy",
        "a `Dataset` that draws from the global generators",
        fitted(_loaded(0, shuffle=True)),
        _ONCE,
        EVERYWHERE,
    ),
    Way(
        "loader-workers",
        "`DataLoader` with worker processes",
        fitted(lambda: _loaded(1, shuffle=True, **_WORKERS)()),
        _ONCE,
        EVERYWHERE,
    ),
    Way(
        "loader-workers-kept",
        "`DataLoader` with `persistent_workers`",
        fitted(lambda: _loaded(1, shuffle=True, persistent_workers=True, **_WORKERS)()),
        _ONCE,
        EVERYWHERE,
    ),
    Way(
        "loader-pinned",
        "the same with `pin_memory`, where a copy stands in for a device that torch lacks",
        fitted(lambda: _pinned(1, shuffle=True, persistent_workers=True, **_WORKERS)),
        _ONCE,
        EVERYWHERE,
    ),
    Way(
        "loader-workers-steps",
        "`DataLoader` with `persistent_workers` and `steps_per_epoch`",
        fitted(
            lambda: _loaded(1, shuffle=True, persistent_workers=True, **_WORKERS)(),
            steps_per_epoch=4,
            epochs=6,
        ),
        _ONCE,
        ("batch 1", "batch 3", "epoch 1", "batch 2", "batch 3"),
    ),
    Way(
        "loader-workers-noisy",
        'random numbers drawn in worker processes, with `input_state="replay"`',
        _replayed,
        _ONCE,
        EVERYWHERE,
    ),
    Way("loader-stream", "`IterableDataset`", fitted(_loaded(2)), _ONCE, EVERYWHERE),
    Way(
        "loader-stateful",
        "`StatefulDataLoader` of torchdata",
        fitted(_stateful()),
        _ONCE,
        EVERYWHERE,
        needs=("torchdata",),
    ),
    Way(
        "loader-stateful-workers",
        "`StatefulDataLoader` with worker processes",
        fitted(_stateful(**_WORKERS)),
        _ONCE,
        EVERYWHERE,
        needs=("torchdata",),
    ),
    Way(
        "loader-stateful-stream",
        "`StatefulDataLoader` of an `IterableDataset` with `state_dict()`",
        fitted(_stateful(4)),
        {ONE: Exact("the state_dict() of its dataset holds all that the batches depend on")},
        EVERYWHERE,
        needs=("torchdata",),
    ),
    Way(
        "loader-stateful-stream-workers",
        "the same with worker processes",
        fitted(_stateful(4, **_WORKERS)),
        {ONE: Exact("the state_dict() of its dataset holds all that the batches depend on")},
        EVERYWHERE,
        needs=("torchdata",),
    ),
    Way(
        "loader-stateful-stream-steps",
        "the same with `steps_per_epoch`, which continues in the next epoch",
        fitted(_stateful(4), steps_per_epoch=4, epochs=6),
        {ONE: Exact("the state_dict() of its dataset holds all that the batches depend on")},
        ("batch 1", "batch 3", "epoch 1", "batch 2", "batch 3"),
        needs=("torchdata",),
    ),
    Way(
        "torch-module",
        "a `torch.nn.Module` with `BatchNorm1d` and `Dropout` in a model of Keras",
        _of_class("wrapped"),
        {ONE: Exact()},
        EVERYWHERE,
    ),
    Way(
        "torch-draws",
        "a `train_step` that draws from torch's global generator and from one in an attribute, and counts in a buffer",
        _of_class("Drawing"),
        {ONE: Exact("it remembers nothing else")},
        EVERYWHERE,
    ),
    Way(
        "torch-backward",
        "a `train_step` with `loss.backward()`, and an optimizer that its first step builds",
        _of_class("Backward"),
        {ONE: Exact("it remembers nothing else")},
        EVERYWHERE,
    ),
    Way(
        "torch-compiled",
        "`jit_compile=True`",
        _of_class("Subclassed", jit_compile=True),
        {ONE: Exact("torch compiles the step to the same code")},
    ),
    Way(
        "torch-compiled-by-hand",
        "a module and a function in the `train_step` that `torch.compile` has made",
        _of_class("CompiledByHand"),
        {ONE: Exact("torch compiles them to the same code")},
        EVERYWHERE,
    ),
    Way(
        "torch-metric",
        "a metric whose result is a view of its variable, which a validation changes",
        _of_class("Measured"),
        {ONE: Exact("it remembers nothing else")},
        ("test 0", "test_batch 2", "batch 3"),
    ),
)
