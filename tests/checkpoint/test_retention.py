from __future__ import annotations

import pytest

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import NotFound
from keras_preempt.checkpoint.layout import MANIFEST, attempt_directory, attempt_name
from keras_preempt.checkpoint.local_store import LocalStore
from keras_preempt.checkpoint.reader import committed, verify
from keras_preempt.checkpoint.retention import retain
from tests.checkpoint.builders import save, snapshot, write_parts


def steps(store: LocalStore) -> list[int]:
    return [info.step for info in committed(store)]


@pytest.mark.parametrize("max_to_keep", [1, 2, 3, 9])
def test_the_newest_checkpoints_are_kept_whole(store: LocalStore, max_to_keep: int) -> None:
    infos = [save(store, step, round=step) for step in range(1, 6)]
    removed = retain(store, max_to_keep, 1)
    kept = list(range(1, 6))[-max_to_keep:]
    assert steps(store) == kept[::-1]
    assert removed == [info.directory for info in infos if info.step not in kept][::-1]
    assert {path.name for path in store.path.glob("step-*")} == {f"step-{step:08d}" for step in kept}
    for info in committed(store):
        verify(store, info)
    assert retain(store, max_to_keep, 1) == []


@pytest.mark.parametrize("max_to_keep", [0, -1])
def test_keeping_nothing_is_refused(store: LocalStore, max_to_keep: int) -> None:
    save(store, 1)
    before = snapshot(store.path)
    with pytest.raises(ValueError, match=r"Expected max_to_keep to be 1 or more\. Received: "):
        retain(store, max_to_keep, 1)
    assert snapshot(store.path) == before


def test_the_newest_commit_is_kept_although_an_older_one_reached_a_later_step(store: LocalStore) -> None:
    """The older one may be broken: that may be why training went back."""
    save(store, 80)
    save(store, 100, round=2)
    incarnations.claim(store, {})
    save(store, 90)
    assert retain(store, 1, 2) == ["step-00000100/00001-0002", "step-00000080/00001-0001"]
    assert steps(store) == [90]


def test_two_attempts_of_one_step_are_two_checkpoints(store: LocalStore) -> None:
    save(store, 5, round=1)
    save(store, 5, round=2)
    assert retain(store, 1, 1) == ["step-00000005/00001-0001"]
    assert [info.attempt for info in committed(store)] == ["00001-0002"]


def test_abandoned_attempts_of_earlier_incarnations_go_and_others_stay(store: LocalStore) -> None:
    for incarnation in (1, 2, 3):
        write_parts(store, attempt_directory(7, attempt_name(incarnation, 1)), 7)
    assert retain(store, 1, 2) == ["step-00000007/00001-0001"]
    assert store.children("step-00000007") == ["00002-0001", "00003-0001"]


def test_a_checkpoint_with_an_unreadable_manifest_stays_and_does_not_count(store: LocalStore) -> None:
    save(store, 1)
    bad = save(store, 2, round=2)
    save(store, 3, round=3)
    (store.path / bad.directory / MANIFEST).write_bytes(b"{")
    assert retain(store, 2, 9) == []
    assert retain(store, 1, 9) == ["step-00000001/00001-0001"]
    assert steps(store) == [3, 2]
    assert len(store.list(bad.directory)) == 7


def test_what_no_save_has_written_is_never_removed(store: LocalStore) -> None:
    old = save(store, 1)
    save(store, 2, round=2)
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
    assert retain(store, 1, 2) == [old.directory]
    assert steps(store) == [2]
    left = {info.name for info in store.list("") if "step-00000002" not in info.name}
    assert left == foreign | {"incarnations/00001.json"}


def test_the_manifest_goes_first_so_that_a_crash_leaves_no_broken_checkpoint(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, 1)
    save(store, 2, round=2)

    def crash(_: str) -> None:
        raise OSError("cut")

    with monkeypatch.context() as patch:
        patch.setattr(store, "delete_tree", crash)
        with pytest.raises(OSError, match="cut"):
            retain(store, 1, 1)
    assert steps(store) == [2]
    # The rest of it is cleared away by the next incarnation.
    assert retain(store, 1, 2) == ["step-00000001/00001-0001"]


def test_two_at_work_do_not_disturb_each_other(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, 1)
    save(store, 2, round=2)

    def already_gone(name: str) -> None:
        raise NotFound(name, store.url)

    monkeypatch.setattr(store, "delete", already_gone)
    assert retain(store, 1, 1) == ["step-00000001/00001-0001"]
