"""The newest checkpoint is read together or by everyone."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from keras_preempt.checkpoint.exchange import give_all
from keras_preempt.checkpoint.finding import CheckpointInfo
from keras_preempt.checkpoint.reader import Loaded, Reading
from keras_preempt.checkpoint.setup import Setup
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import Moved, uncounted
from keras_preempt.process.environment import RESTORE
from keras_preempt.training.save.resuming import Start
from keras_preempt.training.start import handshake
from keras_preempt.training.start.reading_together import Share, reads_together
from keras_preempt.training.start.startup import Startup
from tests.agreement.memory_coordinator import MemoryService
from tests.checkpoint.round_table import Damage, RoundTable, together
from tests.training.test_startup import IDENTITY, assert_restored, of_one, saved_run, spoil, started


def test_a_bucket_is_read_together_and_a_directory_by_everyone_unless_the_user_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RESTORE, raising=False)
    bucket, directory = GcsStore("gs://bucket/run"), LocalStore(tmp_path)
    assert reads_together(bucket)
    assert not reads_together(directory)
    monkeypatch.setenv(RESTORE, "read")
    assert not reads_together(bucket)
    monkeypatch.setenv(RESTORE, "exchange")
    assert reads_together(directory)
    monkeypatch.setenv(RESTORE, "share")
    expected = r"Expected KERAS_PREEMPT_RESTORE to be 'exchange' or 'read'.*'share'"
    with pytest.raises(ValueError, match=expected):
        reads_together(directory)


SETUP = Setup(workers=2, replicas=2, global_batch=8, batches=6, built_from=1)


class Flaky(LocalStore):
    """Counts what is opened of a kind of files; the first times that such a file is, it fails."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.kind = ".mirrored"
        self.failures = 0
        self.opened: Counter[str] = Counter()

    def open(self, name: str, moved: Moved = uncounted) -> Any:
        if self.kind in name:
            self.opened[name] += 1
            if self.failures:
                self.failures -= 1
                raise OSError("the disk of this worker failed")
        return super().open(name, moved)


def begin_together(stores: list[Flaky], table: RoundTable, **how: Any) -> list[Start]:
    """Begins a fit of two workers that can exchange what they read; see `begin_each`."""
    return started(begin_each(stores, table, **how))


def begin_each(
    stores: list[Flaky],
    table: RoundTable,
    *,
    proposes: tuple[bool, bool] = (True, False),
    tell: bool = False,
    damage: dict[int, Damage] | None = None,
    shares: Callable[[int, Share], Any] = lambda member, share: share,
    give: Callable[[int, Callable[[], list[bytes]]], list[bytes]] = lambda member, call: call(),
) -> list[Start | Exception]:
    """Returns what came of each worker, also if it has failed.

    `tell` says whether they tell each other the part lists; `give` is called with the number of a worker, and what
    gives those that it has read.
    """
    service = MemoryService(2)

    def worker(member: int) -> Callable[[], Start]:
        gather = table.gather(member, *filter(None, [(damage or {}).get(member)]))

        class Exchanging(Startup):
            together = proposes[member]
            tells = tell

            def give(self, data: bytes) -> list[bytes]:
                return give(member, lambda: give_all(gather, 2, member, data))

            def identity(self) -> dict[str, Any]:
                return {**IDENTITY, "run_id": str(member)}

            def read(self, info: CheckpointInfo) -> Loaded:
                return Reading(self.store, info).load(member, SETUP)

            def read_share(self, info: CheckpointInfo) -> Any:
                reading = Reading(self.store, info, share=(member, 2))
                share = Share(reading.load(member, SETUP), reading, gather, contextlib.nullcontext)
                return shares(member, share)

        return Exchanging(stores[member], handshake.Handshake(service.coordinators()[member], 1)).agree

    return together([worker(member) for member in range(2)])


def rounds(table: RoundTable) -> int:
    (number,) = {len(lengths) for lengths in table.lengths}
    return number


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Flaky]:
    monkeypatch.setattr(handshake, "START_TIMEOUT", 20.0)
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
    exchange = mock.Mock(side_effect=AssertionError("it must not be exchanged"))
    other = SimpleNamespace(reading=SimpleNamespace(plan="another"), exchange=exchange)
    starts = begin_together(stores, table, shares=lambda member, share: other if member else share)
    assert_restored(starts, 8, exchanged=False)
    assert rounds(table) == 0


# -- One worker reads each part list, and tells the others ------------------------------------------------


def lists_read(stores: list[Flaky]) -> list[int]:
    return [sum(store.opened.values()) for store in stores]


@pytest.fixture
def listed(stores: list[Flaky]) -> list[Flaky]:
    for store in stores:
        store.kind = ".part.json"
    return stores


@pytest.mark.parametrize("exchanged", [True, False], ids=["weights together", "weights by each"])
@pytest.mark.parametrize("tell", [True, False])
def test_each_part_list_is_read_by_one_worker_which_tells_the_others(
    tell: bool, exchanged: bool, listed: list[Flaky], table: RoundTable
) -> None:
    starts = begin_together(listed, table, tell=tell, proposes=(exchanged, exchanged))
    assert_restored(starts, 8, exchanged=exchanged)
    assert lists_read(listed) == ([1, 1] if tell else [2, 2])


@pytest.mark.parametrize("failing", [0, 1])
def test_a_part_list_that_one_worker_cannot_read_makes_each_read_all(
    failing: int, listed: list[Flaky], table: RoundTable, caplog: pytest.LogCaptureFixture
) -> None:
    listed[failing].failures = 1
    starts = begin_together(listed, table, tell=True)
    assert_restored(starts, 8, exchanged=False)
    assert rounds(table) == 0, "nobody may enter an exchange that another one does not enter"
    told = [record.getMessage() for record in caplog.records if "together" in record.getMessage()]
    assert len(told) == 2
    assert all("the disk of this worker failed" in text for text in told)


@pytest.mark.parametrize("receiver", [0, 1])
def test_a_part_list_that_arrives_damaged_makes_each_read_all(
    receiver: int, listed: list[Flaky], table: RoundTable, caplog: pytest.LogCaptureFixture
) -> None:
    def damaged(number: int, given: list[Any]) -> None:
        if number == 1:  # After the lengths.
            given[1 - receiver][100] ^= 1

    starts = begin_together(listed, table, tell=True, damage={receiver: damaged})
    assert_restored(starts, 8, exchanged=False)
    assert "another crc32c than when it was written" in caplog.text


@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
def test_a_damaged_part_list_makes_all_use_the_checkpoint_before(
    damage: str, listed: list[Flaky], table: RoundTable
) -> None:
    (file,) = listed[0].path.glob("step-00000008/*/w00001.part.json")
    data = file.read_bytes()
    file.unlink()
    if damage != "gone":
        file.write_bytes(data[:-9] if damage == "cut" else data.replace(b"member", b"mumber"))
    starts = begin_together(listed, table, tell=True)
    assert_restored(starts, 3, exchanged=True)
    for start in starts:
        (skipped,) = start.skipped
        assert "w00001.part.json is not what was written" in skipped


@pytest.mark.parametrize("broken", [0, 1])
def test_an_exchange_of_part_lists_that_breaks_on_one_worker_ends_the_start_of_all(
    broken: int, listed: list[Flaky], table: RoundTable
) -> None:
    def give(member: int, call: Callable[[], list[bytes]]) -> list[bytes]:
        if member == broken:
            raise ValueError("the network is gone")
        return [b"", b""]  # As if it were over here.

    outcomes = begin_each(listed, table, tell=True, give=give)
    of_one(broken, "the network is gone", ValueError, outcomes)


def test_a_worker_that_dies_before_it_tells_ends_the_start_of_the_others_in_time(
    listed: list[Flaky], table: RoundTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "START_TIMEOUT", 0.5)
    say = handshake.Handshake.say

    def dies(self: handshake.Handshake, name: str, value: Any) -> None:
        if name == "lists/0/1":
            raise SystemExit  # Nobody is told of it.
        say(self, name, value)

    monkeypatch.setattr(handshake.Handshake, "say", dies)
    monkeypatch.setattr(handshake.Handshake, "_tell", lambda self, error, name: None)
    first, second = begin_each(listed, table, tell=True)
    assert isinstance(first, handshake.WorkerMissing)
    assert "Expected worker 1 to begin its fit too" in str(first)
    assert isinstance(second, SystemExit)


def test_a_manifest_that_one_worker_cannot_read_is_told_at_once(
    listed: list[Flaky], table: RoundTable
) -> None:
    listed[1].kind, listed[1].failures = "MANIFEST.json", 1
    of_one(1, "the disk of this worker failed", OSError, begin_each(listed, table, tell=True))
