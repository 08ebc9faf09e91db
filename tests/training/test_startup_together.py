"""How the workers of a fit begin where they read a checkpoint together, each in a thread, over one directory."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint.other_workers import Setup, load_for
from keras_preempt.checkpoint.reader import CheckpointInfo, Loaded
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import Moved, Store, uncounted
from keras_preempt.training import handshake, reading, startup
from keras_preempt.training.startup import Start
from tests.agreement.memory_coordinator import MemoryService
from tests.checkpoint.builders import model
from tests.checkpoint.round_table import Damage, RoundTable, together
from tests.training.test_startup import IDENTITY, saved_run, spoil, started

SETUP = Setup(workers=2, replicas=2, global_batch=8, batches=6, built_from=1)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "START_TIMEOUT", 20.0)


class Flaky(LocalStore):
    """Counts what is opened; the first times that a file of mirrored tensors is, it fails."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.failures = 0
        self.opened: Counter[str] = Counter()

    def open(self, name: str, moved: Moved = uncounted) -> Any:
        if ".mirrored" in name:
            self.opened[name] += 1
            if self.failures:
                self.failures -= 1
                raise OSError("the disk of this worker failed")
        return super().open(name, moved)


def begin_together(
    stores: list[Flaky],
    table: RoundTable,
    *,
    proposes: tuple[bool, bool] = (True, False),
    damage: dict[int, Damage] | None = None,
    shares: Callable[[int, reading.Share], Any] = lambda member, share: share,
) -> list[Start]:
    """Begins a fit of two workers that can exchange what they read."""
    service = MemoryService(2)

    def worker(member: int) -> Callable[[], Start]:
        gather = table.gather(member, *filter(None, [(damage or {}).get(member)]))

        def read(store: Store, info: CheckpointInfo, member: int, members: int) -> Loaded:
            return load_for(store, info, member, SETUP)

        def read_share(store: Store, info: CheckpointInfo, member: int, members: int) -> Any:
            share = reading.read_share(store, info, (member, members), SETUP, gather, contextlib.nullcontext)
            return shares(member, share)

        return lambda: startup.begin(
            service.coordinators()[member],
            1,
            stores[member],
            stores[member].prepare,
            lambda: {**IDENTITY, "run_id": str(member)},
            read,
            read_share=read_share,
            together=proposes[member],
        )

    return started(together([worker(member) for member in range(2)]))


def assert_restored(starts: list[Start], step: int, *, exchanged: bool) -> None:
    for member, start in enumerate(starts):
        assert start.name.startswith(f"step-{step:08d}/")
        assert start.exchanged == exchanged
        assert start.restored is not None
        assert start.restored.state["member"] == member
        for name, array in model(step).items():
            assert start.restored.tensors[name].tobytes() == array.tobytes()


def rounds(table: RoundTable) -> int:
    (number,) = {len(lengths) for lengths in table.lengths}
    return number


@pytest.fixture
def stores(tmp_path: Path) -> list[Flaky]:
    path = saved_run(tmp_path, 3, 8).path
    return [Flaky(path), Flaky(path)]


@pytest.fixture
def table() -> RoundTable:
    return RoundTable(2)


def test_workers_that_read_together_open_each_file_once(stores: list[Flaky], table: RoundTable) -> None:
    assert_restored(begin_together(stores, table), 8, exchanged=True)
    assert sorted((stores[0].opened + stores[1].opened).values()) == [1, 1]
    assert rounds(table) > 0


@pytest.mark.parametrize("proposes", [(False, True), (False, False)])
def test_worker_0_decides_whether_they_do(
    stores: list[Flaky], table: RoundTable, proposes: tuple[bool, bool]
) -> None:
    assert_restored(begin_together(stores, table, proposes=proposes), 8, exchanged=False)
    assert sorted((stores[0].opened + stores[1].opened).values()) == [2, 2]
    assert rounds(table) == 0


@pytest.mark.parametrize("failing", [0, 1])
def test_a_share_that_cannot_be_read_makes_all_read_everything(
    failing: int, stores: list[Flaky], table: RoundTable, caplog: pytest.LogCaptureFixture
) -> None:
    stores[failing].failures = 1
    with caplog.at_level(logging.WARNING):
        starts = begin_together(stores, table)
    assert_restored(starts, 8, exchanged=False)
    assert [start.skipped for start in starts] == [(), ()]
    assert rounds(table) == 0, "nobody may enter an exchange that another one does not enter"
    told = [record.getMessage() for record in caplog.records if "together" in record.getMessage()]
    assert len(told) == 2
    assert all("the disk of this worker failed" in text for text in told)


@pytest.mark.parametrize("receiver", [0, 1])
def test_a_share_that_arrives_damaged_makes_all_read_everything(
    receiver: int, stores: list[Flaky], table: RoundTable
) -> None:
    def damaged(number: int, given: list[Any]) -> None:
        given[1 - receiver][1000] ^= 1

    starts = begin_together(stores, table, damage={receiver: damaged})
    assert_restored(starts, 8, exchanged=False)
    assert rounds(table) > 0


def test_a_damaged_checkpoint_is_not_used_and_the_one_before_it_is_read_together(
    stores: list[Flaky], table: RoundTable
) -> None:
    spoil(stores[0], 8, "w00001.mirrored*")
    starts = begin_together(stores, table)
    assert_restored(starts, 3, exchanged=True)
    for start in starts:
        (skipped,) = start.skipped
        assert "another crc32c" in skipped


def test_workers_that_see_other_files_exchange_nothing(stores: list[Flaky], table: RoundTable) -> None:
    class Other:
        plan = "another"

        def exchange(self) -> Loaded:
            raise AssertionError("it must not be exchanged")

    starts = begin_together(stores, table, shares=lambda member, share: Other() if member else share)
    assert_restored(starts, 8, exchanged=False)
    assert rounds(table) == 0
