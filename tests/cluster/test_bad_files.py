"""A damaged checkpoint is never restored: the one before it is, and this is said; without any, nothing is."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import pytest

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import CorruptCheckpoint
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.training.start.startup import NoUsableCheckpoint
from tests.checkpoint.fuzz_targets import fields_of, list_part, seal_document
from tests.cluster.small_fit import contents, fit, make_model


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


MANIFEST, PART = "MANIFEST.json", "w00000.part.json"
TENSORS = ("w00000.mirrored.safetensors", "w00000.local.safetensors")
DAMAGE = [
    (MANIFEST, truncate),
    (PART, remove),
    (PART, pipe),
    (TENSORS[0], truncate),
    (TENSORS[1], flip),
]
"""tests/checkpoint/test_corruption.py damages every place of every file; links: test_hostile_directory.py there."""


@pytest.fixture(scope="module")
def model() -> keras.Model:
    """One that is compiled once: here it only counts whether its steps are run."""
    return make_model()


@pytest.fixture(scope="module")
def run(model: keras.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints, after one step and after six."""
    directory = tmp_path_factory.mktemp("run")
    assert fit(directory, model=model, strike=(0, 1))[-1:] in ([(0, 0)], [(0, 1)])
    fit(directory, model=model, strike=(1, 1))
    return directory


@pytest.fixture
def directory(run: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run"


def checkpoints(directory: Path) -> list[Path]:
    return sorted(path.parent for path in directory.glob("step-*/*/MANIFEST.json"))


def damage_id(value: object) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", "")


@pytest.mark.parametrize(("name", "damage"), DAMAGE, ids=damage_id)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_and_this_is_said(
    name: str,
    damage: Callable[[Path], None],
    directory: Path,
    model: keras.Model,
    caplog: pytest.LogCaptureFixture,
) -> None:
    older, newer = checkpoints(directory)
    damage(newer / name)
    kept = contents(newer)
    with caplog.at_level(logging.INFO, logger="keras_preempt"):
        steps = fit(directory, model=model)
    done = int(older.parent.name.removeprefix("step-"))
    assert len(steps) == 8 - done
    events = [json.loads(line) for line in max(directory.glob("events/*")).read_text().splitlines()]
    restore = next(event for event in events if event["event"] == "restore")
    assert restore["checkpoint"] == str(older.relative_to(directory))
    assert [why.partition(":")[0] for why in restore["skipped"]] == [str(newer.relative_to(directory))]
    assert f"{newer.relative_to(directory)} is not used" in caplog.text
    assert contents(newer) == kept, "what is broken is left for a person to look at"


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes a part list, and makes all sums right: as it is written on purpose."""
    body = fields_of(folder / PART)
    change(body)
    (folder / PART).write_bytes(seal_document(body))
    list_part(folder, PART)


def moved(position: dict[str, Any]) -> Callable[[Path], None]:
    """Has another position written into a checkpoint, in both of the places where it stands."""

    def change(folder: Path) -> None:
        body = {**fields_of(folder / MANIFEST), "position": position}
        (folder / MANIFEST).write_bytes(seal_document(body))
        edit(folder, lambda part: part.update(position=position))

    return change


PLACE = {"epoch": 1, "phase": "train", "batch": 1, "step": 6}


@pytest.mark.parametrize(
    "damage",
    [
        moved({}),
        moved({**PLACE, "epoch": "the second"}),
        moved({**PLACE, "phase": "night"}),
        *(
            partial(edit, change=change)
            for change in (
                lambda part: part["state"].pop("random"),
                lambda part: part["state"]["input"]["position"].update(batches="five"),
                lambda part: part["state"].update(input={"position": {}, "way": "state"}),
                lambda part: part["state"].update(stopped="x", callbacks=7),
                lambda part: part["state"].update(input=None),
                lambda part: part.update(state={}),
            )
        ),
    ],
)
def test_a_checkpoint_of_another_structure_is_passed_over_for_the_one_before(
    damage: Callable[[Path], None], directory: Path, model: keras.Model, caplog: pytest.LogCaptureFixture
) -> None:
    older, newer = checkpoints(directory)
    damage(newer)
    assert len(fit(directory, model=model)) == 8 - int(older.parent.name.removeprefix("step-"))
    (told,) = [text for text in caplog.messages if "is not used" in text]
    assert str(newer.relative_to(directory)) in told
    assert "an unexpected structure: expected " in told


def test_without_any_checkpoint_that_verifies_training_is_refused_and_all_files_are_kept(
    directory: Path, model: keras.Model, caplog: pytest.LogCaptureFixture
) -> None:
    for checkpoint, name in zip(checkpoints(directory), (MANIFEST, TENSORS[0]), strict=True):
        flip(checkpoint / name)
    before = contents(directory)
    with pytest.raises(NoUsableCheckpoint, match="2 that cannot") as raised:
        fit(directory, model=model)
    assert contents(directory) == before
    for checkpoint, name in zip(checkpoints(directory), (MANIFEST, TENSORS[0]), strict=True):
        folder = str(checkpoint.relative_to(directory))
        why = f"{folder}: {name} is not what was written: "
        assert str(raised.value).count(folder) == 1
        assert why in str(raised.value)
        assert [text.count(folder) for text in caplog.messages if "is not used" in text and name in text] == [
            1
        ]
    assert "inspect DIR --verify" in str(raised.value)


def test_a_run_whose_identity_is_damaged_is_refused_and_all_files_are_kept(
    directory: Path, model: keras.Model
) -> None:
    flip(directory / "run.json")
    before = contents(directory)
    with pytest.raises(CorruptCheckpoint, match=r"run\.json"):
        fit(directory, model=model)
    assert contents(directory) == before


@pytest.mark.parametrize("damage", [flip, remove])
def test_a_damaged_claim_of_an_earlier_start_is_told_apart_and_loses_nothing(
    damage: Callable[[Path], None], directory: Path, model: keras.Model
) -> None:
    """What it says is for people; that it is there is what counts."""
    claim = directory / "incarnations" / "00001.json"
    damage(claim)
    before = contents(directory)
    if damage is not remove:
        with pytest.raises(CorruptCheckpoint, match=r"incarnations/00001\.json"):
            incarnations.read_claim(LocalStore(directory), 1)
    newest = checkpoints(directory)[-1]
    assert len(fit(directory, model=model)) == 8 - int(newest.parent.name.removeprefix("step-"))
    after = contents(directory)
    assert {name: after[name] for name in before if not name.startswith("step-")} == {
        name: data for name, data in before.items() if not name.startswith("step-")
    }


def set_state(fields: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    return lambda part: part["state"].update(fields)


@pytest.mark.parametrize(
    "change",
    [
        set_state({"logs": {"$": "run", "items": ["os.system", "true"]}}),
        *(
            pytest.param(change, marks=pytest.mark.chaos)
            for change in (
                lambda part: part["state"].pop("evaluation_iterators"),
                set_state({"evaluation_iterators": []}),
                set_state({"logs": {"$": "array", "name": "none"}}),
                set_state({"random": {"python": 1, "numpy": 2}}),
            )
        ),
    ],
)
def test_a_state_of_another_structure_is_refused_in_one_line_and_all_files_are_kept(
    change: Callable[[dict[str, Any]], None], directory: Path, model: keras.Model
) -> None:
    """All sums are right: it was written on purpose."""
    folder = checkpoints(directory)[-1]
    edit(folder, change)
    before = contents(folder)
    with pytest.raises((CorruptCheckpoint, ValueError), match=r"Expected .* Received: ") as refused:
        fit(directory, model=model)
    message = str(refused.value)
    assert message.isprintable()
    assert len(message) < 1000
    assert contents(folder) == before
    # What fit was left by keeps it alive, and the next fit must not begin before this one has given all back.
    del refused
    gc.collect()
