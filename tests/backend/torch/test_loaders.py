"""A loader that begins at a later batch gives what it would have given, and reads nothing of what comes before."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from keras_preempt.backend.torch import loaders

COUNT = 12
WORKERS: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
KINDS: dict[str, dict[str, Any]] = {
    "here": {},
    "in order": {"shuffle": False},
    "with replacement": {"shuffle": False, "sampler": RandomSampler(range(COUNT), replacement=True)},
    "by batch": {
        "shuffle": False,
        "batch_size": 1,
        "batch_sampler": BatchSampler(RandomSampler(range(COUNT)), 3, drop_last=False),
    },
    "without batches": {"batch_size": None, "shuffle": False, "sampler": RandomSampler(range(COUNT))},
    "workers": WORKERS,
    "persistent workers": {**WORKERS, "persistent_workers": True},
    "pinned": {"pin_memory": True},
    "pinned, from persistent workers": {**WORKERS, "persistent_workers": True, "pin_memory": True},
}


class Counting(Dataset[Any]):
    """Knows which samples it was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked.append(index)
        return torch.tensor(index)


def _loader(kind: type[DataLoader[Any]] = DataLoader, dataset: Any = None, **options: Any) -> DataLoader[Any]:
    return kind(dataset or Counting(), **{"batch_size": 3, "shuffle": True, **options})


def _drawn(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


def _kinds() -> list[type[DataLoader[Any]]]:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    return [DataLoader, stateful.StatefulDataLoader]


@pytest.mark.parametrize("stateful", [False, True], ids=["DataLoader", "StatefulDataLoader"])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.filterwarnings(
    "ignore:'set_vital':UserWarning", "ignore:'pin_memory' argument is set:UserWarning"
)
def test_a_loader_begins_at_any_batch(name: str, stateful: bool) -> None:
    kind = _kinds()[1] if stateful else DataLoader
    for skip in (0, 1, 3):
        torch.manual_seed(1)
        whole = _drawn(_loader(kind, **KINDS[name]))
        torch.manual_seed(1)
        loader = _loader(kind, **KINDS[name])
        if loader.persistent_workers:
            loaders.start_workers(loader)
            assert loaders.keeps_workers(loader)
        sampler = loader.batch_sampler or loader.sampler
        assert _drawn(loaders.make_again(loader, skip, lambda draw: draw())) == whole[skip:]
        assert (loader.batch_sampler or loader.sampler) is sampler
        # The next pass is whole, with the workers that are there.
        assert len(_drawn(loader)) == len(whole)


def test_nothing_is_read_before_the_batch_that_is_wanted() -> None:
    dataset = Counting()
    rest = _drawn(loaders.make_again(_loader(dataset=dataset), 2, lambda draw: draw()))
    assert sorted(dataset.asked) == sorted(chain.from_iterable(rest))


def test_the_order_is_drawn_within_what_is_asked_for() -> None:
    torch.manual_seed(1)
    whole = _drawn(_loader())
    torch.manual_seed(1)
    loader = _loader()
    torch.empty((), dtype=torch.int64).random_()  # As iter(loader) does.
    before_first = torch.random.get_rng_state()
    torch.manual_seed(7)

    def within(draw: Any) -> None:
        now = torch.random.get_rng_state()
        torch.random.set_rng_state(before_first)
        draw()
        torch.random.set_rng_state(now)

    assert _drawn(loaders.make_again(loader, 1, within)) == whole[1:]


def test_persistent_workers_that_run_already_begin_at_any_batch() -> None:
    options = {**WORKERS, "persistent_workers": True}
    torch.manual_seed(1)
    loader = _loader(**options)
    next(iter(loader))  # As Keras does to build a model.
    state = torch.random.get_rng_state()
    whole = _drawn(loader)
    torch.random.set_rng_state(state)
    assert _drawn(loaders.make_again(loader, 2, lambda draw: draw())) == whole[2:]


def test_a_loader_of_tensors_runs_no_code_of_the_user() -> None:
    tensors = TensorDataset(torch.arange(COUNT))
    assert loaders.is_of_tensors(_loader(dataset=tensors))
    assert not loaders.is_of_tensors(_loader())
    assert not loaders.is_of_tensors(_loader(dataset=tensors, collate_fn=lambda batch: batch))

    class Own(RandomSampler):
        pass

    assert not loaders.is_of_tensors(_loader(dataset=tensors, shuffle=False, sampler=Own(tensors)))


def test_a_stream_has_no_samples_by_index() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            yield from range(3)

    assert loaders.is_read_by_index(_loader())
    assert not loaders.is_read_by_index(_loader(dataset=Stream(), shuffle=None))


class Resumable(IterableDataset[int]):
    """Tells where it is, and knows what it gave."""

    def __init__(self, extra: Any = None) -> None:
        self.at = 0
        self.gave: list[int] = []
        self._extra = extra

    def __iter__(self) -> Any:
        while self.at < COUNT:
            self.at += 1
            self.gave.append(self.at)
            yield self.at
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "extra": self._extra}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


@pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
def test_a_stream_that_tells_where_it_is_gives_the_rest_and_nothing_of_what_came_before() -> None:
    kind = _kinds()[1]
    loader = _loader(kind, Resumable(), shuffle=None)
    assert loaders.tells_place(loader)
    batches = loaders.begun(loader)
    next(batches)
    state = loaders.state_of(loader)
    next(batches)  # What it is a state of goes on.
    for skip in (0, 1):
        again = _loader(kind, Resumable(), shuffle=None)
        rest = _drawn(loaders.begun_from(again, state, skip))
        assert rest == [[4, 5, 6], [7, 8, 9], [10, 11, 12]][skip:]
        assert again.dataset.gave == list(range(4, COUNT + 1))
        assert len(_drawn(again)) == 4


@pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
def test_a_state_that_is_not_plain_data_or_not_of_the_dataset_is_not_taken() -> None:
    kind = _kinds()[1]
    assert not loaders.tells_place(_loader(kind))  # It has an order that can be made again.
    assert not loaders.tells_place(_loader(dataset=Resumable(), shuffle=None))
    loader = _loader(kind, Resumable(torch.zeros(1)), shuffle=None)
    assert not loaders.tells_place(loader)
    loaders.begun(loader)
    assert loaders.state_of(loader) is None


def test_every_generator_of_a_loader_is_found_once() -> None:
    one, other = torch.Generator(), torch.Generator()
    sampler = RandomSampler(range(COUNT), generator=other)
    assert loaders.generators_of(_loader()) == []
    assert loaders.generators_of(_loader(generator=one)) == [one]
    assert loaders.generators_of(_loader(shuffle=False, sampler=sampler, generator=one)) == [one, other]
