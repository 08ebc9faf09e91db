"""Saves in memory, of fits in this process: what is there after a fit that was left, and what a restart makes of it."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_preempt import Preempted, PreemptionCallback, TerminationConfig
from keras_preempt.checkpoint import machine_memory
from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.training.save.memory_saves import neighbour
from keras_preempt.training.save.schedule import NEVER
from tests import fits
from tests.cluster import small_fit
from tests.cluster.small_fit import await_, model_anew
from tests.fits import Doing

EPOCHS = 3


class Left(Exception):
    """Leaves a fit as an error of the program does, which takes nothing with it."""


class Saved(Doing):
    """Waits after each step until the save in memory is over, and leaves the fit after one."""

    def __init__(self, leave_after: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.ours: PreemptionCallback | None = None
        self.leave_after = leave_after
        self.steps: list[tuple[int, int]] = []
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps.append((self.epoch, batch))
        assert self.ours is not None
        assert self.ours._fit is not None
        saves = self.ours._fit.saves
        await_(lambda: saves.step_in_flight is None)
        if (memory := saves.memory) is not None:
            await_(lambda: memory.due != NEVER or memory._thread is None or not memory._thread.is_alive())
        if (self.epoch, batch) == self.leave_after:
            raise Left


def fit(
    place: Path,
    leave_after: tuple[int, int] | None = None,
    more: Sequence[keras.callbacks.Callback] = (),
    **options: Any,
) -> tuple[PreemptionCallback, Saved, list[np.ndarray[Any, Any]]]:
    """Fits with saves in memory at every other step; returns the callback, what was run, and the weights."""
    fits.forget()  # As a new process.
    saved, model = Saved(leave_after), model_anew()
    options = {"memory_every": 2, "memory_dir": str(place / "memory"), **options}
    ours = saved.ours = PreemptionCallback(place / "run", **options)
    data = small_fit.make_data()
    try:
        model.fit(data, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[ours, saved, *more])
    except Left:
        assert leave_after is not None
    except Preempted:
        assert more
    return ours, saved, [np.array(weight) for weight in model.weights]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "memory").mkdir()
    return tmp_path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray[Any, Any]]:
    return fit(tmp_path_factory.mktemp("undisturbed"), memory_every=None)[2]


def assert_same(weights: list[np.ndarray[Any, Any]], expected: list[np.ndarray[Any, Any]]) -> None:
    assert [each.tobytes() for each in weights] == [each.tobytes() for each in expected]


def held(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place / "memory")) for path in (place / "memory").rglob("*"))


def test_a_fit_that_was_left_continues_from_memory_and_leaves_nothing_there(
    place: Path, undisturbed: list[np.ndarray[Any, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    fit(place, leave_after=(1, 2))
    assert not list((place / "run").glob("step-*"))
    folders = [*place.glob("memory/*"), *place.glob("memory/*/*"), *place.glob("memory/*/*/w?????")]
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}
    ours, saved, weights = fit(place)
    assert ours.resumed is not None
    assert ours.resumed.why == "memory"
    assert saved.steps[0] == (1, 2)  # The step after the save was lost, and no other.
    assert_same(weights, undisturbed)
    assert re.search(r"Continuing from .* \(from the memory of the machines, saved \d", caplog.text)
    assert held(place) == []


def test_the_checkpoint_that_is_further_counts_wherever_it_is(place: Path) -> None:
    fit(place, leave_after=(1, 3), save_every=7)
    stored, _, _ = fit(place, leave_after=(2, 2), save_every=7)
    kept, _, _ = fit(place, save_every=7)
    assert [(each.resumed.why, each.resumed.step) for each in (stored, kept) if each.resumed] == [
        ("periodic", 7),
        ("memory", 10),
    ]


def test_a_notice_before_anything_was_trained_loses_nothing(
    place: Path, undisturbed: list[np.ndarray[Any, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    fit(place, leave_after=(1, 2))
    notice = Doing(on_train_begin=lambda logs: os.kill(os.getpid(), signal.SIGTERM))
    fit(place, more=[notice], termination=TerminationConfig(exit_fn=lambda: None))
    assert "NOT saved" not in caplog.text
    assert held(place) == []  # It is in the directory now.
    ours, saved, weights = fit(place)
    assert ours.resumed is not None
    assert (ours.resumed.why, ours.resumed.step, saved.steps[0]) == ("preempted", 6, (1, 2))
    assert_same(weights, undisturbed)


def _cut(folder: Path) -> None:
    (file,) = folder.glob("*.mirrored.safetensors")
    file.write_bytes(file.read_bytes()[:-1])


def _flip(folder: Path) -> None:
    (file,) = folder.glob("*.local.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": _cut,
    "flipped": _flip,
    "no part": lambda folder: next(folder.glob("*.part.json")).unlink(),
    "no manifest": lambda folder: (folder / "MANIFEST.json").unlink(),
    "manifest": lambda folder: (folder / "MANIFEST.json").write_text("{}"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_never_used(
    damage: str, place: Path, undisturbed: list[np.ndarray[Any, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    fit(place, leave_after=(1, 2), save_every=5)
    (folder,) = (place / "memory").glob("*/*/*/*/*")
    DAMAGES[damage](folder)
    ours, _, weights = fit(place, save_every=5)
    assert ours.resumed is not None
    assert (ours.resumed.why, ours.resumed.step) == ("periodic", 5)
    assert ("in memory" in caplog.text and "is not used" in caplog.text) == (damage != "no manifest")
    assert_same(weights, undisturbed)
    assert held(place) == []


def test_that_of_another_run_is_neither_used_nor_removed(place: Path) -> None:
    fit(place, leave_after=(1, 2))
    before = held(place)
    shutil.rmtree(place / "run")
    ours, _, _ = fit(place)
    assert ours.resumed is None
    assert held(place) == before


def _symlink(place: Path) -> None:
    (place / "elsewhere").mkdir(mode=0o700)
    (place / "memory" / f"keras_preempt-{os.getuid()}").symlink_to(place / "elsewhere")


def _open_to_all(place: Path) -> None:
    (place / "memory" / f"keras_preempt-{os.getuid()}").mkdir(mode=0o755)


def _file(place: Path) -> None:
    (place / "memory" / f"keras_preempt-{os.getuid()}").touch()


@pytest.mark.parametrize(
    ("prepare", "options"),
    [
        (lambda place: None, {"memory_dir": "/nowhere"}),
        (lambda place: None, {"memory_dir": "/proc"}),
        (_symlink, {}),
        (_open_to_all, {}),
        (_file, {}),
    ],
    ids=["none", "read-only", "symlink", "open to all", "file"],
)
def test_where_nothing_can_be_saved_one_line_says_so_and_training_goes_on(
    prepare: Callable[[Path], None],
    options: dict[str, Any],
    place: Path,
    undisturbed: list[np.ndarray[Any, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    prepare(place)
    before = held(place)
    _, _, weights = fit(place, **options)
    assert_same(weights, undisturbed)
    assert len(re.findall("aved in memory", caplog.text)) == 1
    assert "Nothing is saved in memory: Expected to write to" in caplog.text
    assert held(place) == before
    assert not list(place.glob("elsewhere/*"))


def test_too_little_memory_is_known_before_the_first_save(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(machine_memory, "available", lambda: 100)
    fit(place)
    assert re.search(r"Nothing is saved in memory: Expected .* free in .*Received: ", caplog.text)


def test_memory_that_fills_up_is_said_once_and_tried_again(
    place: Path,
    undisturbed: list[np.ndarray[Any, Any]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    created, fails = machine_memory.LocalStore.create, [True, True]

    def create(store: Any, name: str, data: bytes) -> Any:
        if "/memory/" in store.url and fails and fails.pop():
            raise StoreUnavailable("Expected to write. Received: No space left on device.")
        return created(store, name, data)

    monkeypatch.setattr(machine_memory.LocalStore, "create", create)
    fit(place, leave_after=(2, 1))
    assert caplog.text.count("Not saved in memory") == 1
    ours, _, weights = fit(place)
    assert ours.resumed is not None
    assert ours.resumed.why == "memory"
    assert_same(weights, undisturbed)


@pytest.mark.parametrize(
    "options",
    [
        {"memory_every": 0},
        {"memory_every": "epoch"},
        {"memory_every": "soon"},
        {"memory_every": True},
        {"memory_dir": "shm"},
        {"memory_dir": 3},
        {"memory_copies": -1},
        {"memory_copies": True},
    ],
    ids=str,
)
def test_what_cannot_be_asked_for_is_refused_at_once(options: dict[str, Any], tmp_path: Path) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"Expected {name}"):
        PreemptionCallback(tmp_path, **options)


@pytest.mark.parametrize(
    ("hosts", "shift"),
    [("a", 1), ("aaaa", 1), ("abcd", 1), ("aabb", 2), ("aaabbb", 3), ("abab", 1), ("aabbcc", 2)],
)
def test_the_neighbour_is_on_another_machine_if_there_is_one(hosts: str, shift: int) -> None:
    assert neighbour(hosts) == shift
