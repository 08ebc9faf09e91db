from __future__ import annotations

import datetime as dt
import math
from typing import Any
from unittest import mock

import pytest

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import NotFound, StoreUnavailable
from keras_preempt.checkpoint.finding import CheckpointInfo, committed
from keras_preempt.checkpoint.layout import MANIFEST, attempt_directory, attempt_name
from keras_preempt.checkpoint.reader import verify
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.local import LocalStore
from tests.checkpoint.builders import at, retain, save, write_parts


def save_steps(store: LocalStore, *steps: int) -> list[CheckpointInfo]:
    """Saves each in another round, from the first on."""
    return [save(store, step, round=round) for round, step in enumerate(steps, start=1)]


def steps(store: LocalStore) -> list[int]:
    return [info.step for info in committed(store)]


@pytest.mark.parametrize("max_to_keep", [1, 2, 3, 9])
def test_the_newest_checkpoints_are_kept_whole(store: LocalStore, max_to_keep: int) -> None:
    infos = save_steps(store, *range(1, 6))
    removed = retain(store, Retention(max_to_keep), 1)
    kept = list(range(1, 6))[-max_to_keep:]
    assert steps(store) == kept[::-1]
    assert removed == [info.directory for info in infos if info.step not in kept][::-1]
    assert {path.name for path in store.path.glob("step-*")} == {f"step-{step:08d}" for step in kept}
    for info in committed(store):
        verify(store, info)
    assert retain(store, Retention(max_to_keep), 1) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [("max_to_keep", value) for value in (0, -1, True, 1.5, "2", None)]
    + [("keep_every", value) for value in (0, -1, True, 1.5, "", "epochs", "10", "0s", [], b"epoch")]
    + [("keep_every", dt.timedelta(0))],
)
def test_keeping_nothing_and_impossible_periods_are_refused(option: str, value: Any) -> None:
    least = r".*at least 1\. Received: " if option == "max_to_keep" else ""
    with pytest.raises(ValueError, match=rf"Expected {option} to be {least}") as refused:
        Retention(**{option: value})
    assert repr(value) in str(refused.value)


MINUTES = [lambda m=m: (1e6 * 60 + m) * 60 for m in (1, 30, 59, 61, 70, 200, 210)]
EPOCHS = (5, 0), (8, 0), (10, 1), (14, 1), (20, 2), (25, 2), (28, 2)


@pytest.mark.parametrize(
    ("every", "newest", "saves", "kept"),
    [
        # Counted from step 0: the first below 100, of the 100s, of the 200s; and the newest two.
        (100, 2, [{"step": n} for n in (40, 80, 100, 120, 180, 210, 250, 260)], [260, 250, 210, 100, 40]),
        ("epoch", 1, [{"step": n, "position": at(n, epoch=epoch)} for n, epoch in EPOCHS], [28, 20, 10, 5]),
        *(
            (hour, 1, [{"step": n, "now": now} for n, now in enumerate(MINUTES)], [6, 5, 3, 0])
            for hour in ("1h", dt.timedelta(hours=1))
        ),
    ],
)
def test_the_first_checkpoint_of_each_period_is_kept_for_ever(
    store: LocalStore, every: Any, newest: int, saves: list[dict[str, Any]], kept: list[int]
) -> None:
    for round, told in enumerate(saves):
        save(store, round=round, **told)
        retain(store, Retention(newest, keep_every=every), 1)
    assert steps(store) == kept


def test_the_first_of_a_period_is_the_one_that_was_committed_first(store: LocalStore) -> None:
    """After a fall back the steps of a period are passed again; what was kept stays kept."""
    retention = Retention(1, keep_every=100)
    save_steps(store, 150, 250)
    retain(store, retention, 1)
    incarnations.claim(store, {})
    for round, step in enumerate((110, 160, 205, 310)):
        save(store, step, round=round)
        retain(store, retention, 2)
    assert steps(store) == [310, 250, 150]


def test_a_checkpoint_that_falls_in_no_period_is_kept_while_it_is_new(store: LocalStore) -> None:
    for step, created_at in enumerate((math.inf, math.nan, 7.0, 8.0)):
        save(store, step, round=step, now=lambda: created_at, position={"batch": step})  # noqa: B023
    assert retain(store, Retention(2, keep_every="1h"), 1) == [
        "step-00000001/00001-0001",
        "step-00000000/00001-0000",
    ]
    retain(store, Retention(1, keep_every="epoch"), 1)
    assert steps(store) == [3]


def test_a_checkpoint_with_an_unreadable_manifest_opens_no_period(store: LocalStore) -> None:
    bad = save_steps(store, 10, 20, 30, 40)[0]
    (store.path / bad.directory / MANIFEST).write_bytes(b"{")
    retain(store, Retention(1, keep_every=100), 1)
    assert steps(store) == [40, 20, 10]


def test_the_newest_commit_is_kept_although_an_older_one_reached_a_later_step(store: LocalStore) -> None:
    """The older one may be broken: that may be why training went back."""
    save_steps(store, 80, 100)
    incarnations.claim(store, {})
    save(store, 90)
    assert retain(store, Retention(1), 2) == ["step-00000100/00001-0002", "step-00000080/00001-0001"]
    assert steps(store) == [90]


def test_two_attempts_of_one_step_are_two_checkpoints(store: LocalStore) -> None:
    save_steps(store, 5, 5)
    assert retain(store, Retention(1), 1) == ["step-00000005/00001-0001"]
    assert [info.attempt for info in committed(store)] == ["00001-0002"]


def test_abandoned_attempts_of_earlier_incarnations_go_and_others_stay(store: LocalStore) -> None:
    for incarnation in (1, 2, 3):
        write_parts(store, attempt_directory(7, attempt_name(incarnation, 1)), 7)
    assert retain(store, Retention(1), 2) == ["step-00000007/00001-0001"]
    assert store.children("step-00000007") == ["00002-0001", "00003-0001"]


def test_a_checkpoint_with_an_unreadable_manifest_stays_and_does_not_count(store: LocalStore) -> None:
    _, bad, _ = save_steps(store, 1, 2, 3)
    (store.path / bad.directory / MANIFEST).write_bytes(b"{")
    assert retain(store, Retention(2), 9) == []
    assert retain(store, Retention(1), 9) == ["step-00000001/00001-0001"]
    assert steps(store) == [3, 2]
    assert len(store.list(bad.directory)) == 7


def test_what_no_save_has_written_is_never_removed(store: LocalStore) -> None:
    old, _ = save_steps(store, 1, 2)
    foreign = {
        f"{old.directory}/notes.txt",
        f"{old.directory}/best/weights.bin",
        "step-00000001/README",
        "step-1/00001-0001/w00000.part.json",
        "step-00000001/backup/w00000.part.json",
        "events/00001.0.jsonl",
        "mine/step-00000001/00001-0001/w00000.part.json",
    }
    for name in foreign:
        store.create(name, b"mine")
    assert retain(store, Retention(1), 2) == [old.directory]
    assert steps(store) == [2]
    left = {info.name for info in store.list("") if "step-00000002" not in info.name}
    assert left == foreign | {"incarnations/00001.json"}


def test_a_manifest_that_is_created_while_its_attempt_is_cleared_away_goes_too(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a committer that was held up, and then killed before it could take the manifest back."""
    abandoned = attempt_directory(7, attempt_name(1, 1))
    write_parts(store, abandoned, 7)
    delete_tree = store.delete_tree

    def delete_then_be_late(prefix: str) -> None:
        delete_tree(prefix)
        store.create(f"{abandoned}/{MANIFEST}", b"{}")

    monkeypatch.setattr(store, "delete_tree", delete_then_be_late)
    assert retain(store, Retention(1), 2) == [abandoned]
    assert store.list("step-00000007") == []


def test_a_line_of_the_log_says_which_stay_in_words() -> None:
    assert str(Retention()) == "the newest 2 stay"
    assert str(Retention(1, keep_every=1000)) == "the newest stays, and the first of every 1,000 steps"
    assert str(Retention(1, dt.timedelta(minutes=1.5))) == "the newest stays, and the first of every 90 s"


@pytest.mark.parametrize("keep_every", [None, 100])
def test_a_checkpoint_that_lacks_a_part_list_counts_neither_as_new_nor_as_the_first(
    store: LocalStore, keep_every: int | None
) -> None:
    infos = save_steps(store, 10, 20, 30, 40)
    broken = infos[3] if keep_every is None else infos[0]
    store.delete(f"{broken.directory}/w00001.part.json")
    retain(store, Retention(2, keep_every), 1)
    # The two newest whole ones, and what is broken but newer; or those and the first whole one of the period.
    assert steps(store) == [40, 30, 20]


def test_two_at_work_do_not_disturb_each_other(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    save_steps(store, 1, 2)
    monkeypatch.setattr(store, "delete", mock.Mock(side_effect=NotFound("a file", store.url)))
    assert retain(store, Retention(1), 1) == ["step-00000001/00001-0001"]


@pytest.mark.parametrize("times", [1, 3, 100])
def test_a_directory_is_never_taken_for_empty_because_others_save_and_remove_in_it(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A start that finds nothing begins anew, and what it commits supersedes all that was there before."""
    save(store, 1)
    children = store.children
    saving = iter(range(2, 2 + times))

    def saved_meanwhile(prefix: str) -> list[str]:
        names = children(prefix)
        if prefix == "":
            monkeypatch.setattr(store, "children", children)
            if step := next(saving, None):
                save(store, step, round=step)
                retain(store, Retention(1), 1)
            monkeypatch.setattr(store, "children", saved_meanwhile)
        return names

    monkeypatch.setattr(store, "children", saved_meanwhile)
    if times < 100:
        assert steps(store) == [1 + times]
    else:
        with pytest.raises(StoreUnavailable, match="Received: other ones every time, 10 times"):
            committed(store)
