"""What workers have read arrives at the others as it was written; real files, and threads for a network."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_preempt.checkpoint import exchange, reader
from keras_preempt.checkpoint.checked_file import CheckedFile
from keras_preempt.checkpoint.errors import CorruptCheckpoint, NotEnoughMemory
from keras_preempt.checkpoint.exchange import (
    LARGEST_ROUND,
    ROUNDING,
    SMALLEST_PIECE,
    Exchange,
    give_all,
    piece_length,
    share_out,
)
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.reader import Loaded, Reading
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.tensors import Array, new_places, read_to_places, write_tensors
from keras_preempt.checkpoint.values import Value
from tests.checkpoint.builders import local, model, new_store, save
from tests.checkpoint.round_table import Damage, RoundTable, together
from tests.checkpoint.sharded_builders import Counting, held_by


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    save(new_store(tmp_path), 8)
    return Counting(tmp_path / "run")


@pytest.fixture
def small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "LARGEST_ROUND", 100_000)
    monkeypatch.setattr(exchange, "SMALLEST_PIECE", ROUNDING)


def restore(
    store: LocalStore,
    table: RoundTable,
    members: int,
    damage: dict[int, Damage] | None = None,
    specs: list[Value] | None = None,
) -> list[Any]:
    """Lets workers restore the newest checkpoint together; returns what each has got, or its error."""
    info = committed(store)[0]
    ready = threading.Barrier(members)

    def run(member: int) -> Loaded:
        wanted = None if specs is None else held_by(member, specs)
        reading = Reading(store, info, share=(member, members), wanted=wanted)
        loaded = reading.load(member)
        ready.wait(30)
        reading.exchange(table.gather(member, *filter(None, [(damage or {}).get(member)])))
        return loaded

    return together([partial(run, member) for member in range(members)])


@pytest.mark.parametrize("members", [1, 2, 3, 5])
@pytest.mark.usefixtures("small_rounds")
def test_every_worker_gets_all_tensors_and_every_file_is_opened_once(store: Counting, members: int) -> None:
    table = RoundTable(members)
    for member, loaded in enumerate(restore(store, table, members)):
        assert isinstance(loaded, Loaded), loaded
        assert loaded.values.whole.keys() == model(8).keys()
        for name, array in model(8).items():
            assert loaded.values.whole[name].tobytes() == array.tobytes(), name
            assert (loaded.values.whole[name].dtype, loaded.values.whole[name].shape) == (
                array.dtype,
                array.shape,
            )
        own = member if member < 2 else 0  # Two have saved it.
        assert loaded.values.local["moving_mean"].tobytes() == local(8, own)["moving_mean"].tobytes()
    mirrored = {name: count for name, count in store.opened.items() if ".mirrored" in name}
    assert mirrored == {"w00000.mirrored.safetensors": 1, "w00001.mirrored.safetensors": 1}
    assert len({tuple(lengths) for lengths in table.lengths}) == 1, "all take part in the same rounds"
    assert len(table.lengths[0]) > 5


@pytest.mark.usefixtures("small_rounds")
@pytest.mark.parametrize("number", [0, 3])
def test_what_arrives_damaged_is_an_error_there_and_only_after_the_last_round(
    store: Counting, number: int
) -> None:
    """Damaged are a byte of the header, and one of a tensor."""

    def flip(at: int, given: list[Any]) -> None:
        if at == number:
            given[0][100] ^= 1

    table = RoundTable(3)
    first, second, third = restore(store, table, 3, {1: flip})
    assert isinstance(first, Loaded)
    assert isinstance(second, CorruptCheckpoint)
    assert ".mirrored.safetensors to be what was written" in str(second)
    assert isinstance(third, Loaded)
    assert len({tuple(lengths) for lengths in table.lengths}) == 1


def test_an_error_of_the_network_ends_the_exchange_at_once(store: Counting) -> None:
    broken = mock.Mock(side_effect=ConnectionError("gone"))
    reading = Reading(store, committed(store)[0], share=(0, 2))
    reading.load(0)
    with pytest.raises(ConnectionError, match="gone"):
        reading.exchange(broken)
    broken.assert_called_once()


def test_memory_for_all_shares_is_checked_before_any_is_read(
    store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sum(array.nbytes for array in model(8).values())
    check_room = mock.Mock(side_effect=NotEnoughMemory("run", whole, 1))
    monkeypatch.setattr(reader, "check_room", check_room)
    with pytest.raises(NotEnoughMemory):
        Reading(store, committed(store)[0], share=(0, 2)).load(0)
    assert check_room.call_args.args[1] > whole
    assert not any(".mirrored" in name for name in store.opened)


def test_plans_of_two_checkpoints_differ_and_of_one_are_the_same_for_all(store: Counting) -> None:
    save(store, 9)
    plans = []
    for info in committed(store):
        for member in range(3):
            reading = Reading(store, info, share=(member, 3))
            reading.load(member)
            plans.append(reading.plan)
    assert len(set(plans[:3])) == len(set(plans[3:])) == 1
    assert plans[0] != plans[3]


tensor_files = st.lists(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.tuples(
            st.sampled_from(["float32", "uint8", "bool", "int64"]), st.lists(st.integers(0, 9), max_size=3)
        ),
        max_size=3,
    ),
    max_size=5,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensor_files, st.integers(1, 4), st.integers(1, 6))
def test_any_files_arrive_in_rounds_of_any_size(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[dict[str, Any]],
    members: int,
    words: int,
) -> None:
    store = LocalStore(tmp_path_factory.mktemp("any"))
    random = np.random.default_rng(3)
    written = [
        {key: random.integers(0, 2, shape).astype(dtype) for key, (dtype, shape) in tensors.items()}
        for tensors in files
    ]
    entries = [write_tensors(store, "a", f"{n}.safetensors", each) for n, each in enumerate(written)]
    table = RoundTable(members)

    def run(member: int) -> dict[str, dict[str, Array]]:
        got: dict[str, dict[str, Array]] = {}

        def places(name: str, stored: Any) -> Any:
            got[name] = new_places(stored)
            return got[name]

        placed = [(entry, partial(places, entry.name)) for entry in entries]
        shares = share_out([entry.size for entry, _ in placed], members)
        shared = Exchange("a", placed, member, shares)
        shared.hold(read_to_places(CheckedFile(store, "a", entry), places) for entry, places in shared.own)
        moved: list[int] = []
        shared.run(table.gather(member), moved.append)
        assert sum(moved) == shared.arriving
        return got

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "LARGEST_ROUND", words * ROUNDING * members)
        patch.setattr(exchange, "SMALLEST_PIECE", ROUNDING)
        for got in together([partial(run, member) for member in range(members)]):
            assert not isinstance(got, Exception), got
            for entry, tensors in zip(entries, written, strict=True):
                assert got[entry.name].keys() == tensors.keys()
                for key, array in tensors.items():
                    assert got[entry.name][key].tobytes() == array.tobytes()


@given(st.integers(0, 1 << 40), st.integers(1, 2000))
def test_a_round_is_bounded_and_no_larger_than_what_there_is_to_move(longest: int, members: int) -> None:
    length = piece_length(longest, members)
    assert length > 0
    assert length % ROUNDING == 0
    assert length <= max(LARGEST_ROUND // members, SMALLEST_PIECE)
    assert length < longest + ROUNDING or length == ROUNDING
    if longest > SMALLEST_PIECE:
        assert length >= SMALLEST_PIECE or length >= LARGEST_ROUND // members // ROUNDING * ROUNDING


@settings(max_examples=25)
@given(st.lists(st.binary(max_size=100), min_size=1, max_size=4), st.integers(1, 6))
def test_each_worker_gets_what_all_have_given(given_by: list[bytes], words: int) -> None:
    members = len(given_by)
    table = RoundTable(members)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "LARGEST_ROUND", words * ROUNDING * members)
        patch.setattr(exchange, "SMALLEST_PIECE", ROUNDING)
        calls = [partial(give_all, table.gather(m), members, m, data) for m, data in enumerate(given_by)]
        got = together(calls)
    assert got == [given_by] * members
