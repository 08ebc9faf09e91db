"""A damaged checkpoint is never restored: the one before it is, and this is said; without any, nothing is."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import CorruptCheckpoint
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.training.startup import NoUsableCheckpoint
from tests.checkpoint.fuzz_targets import fields_of, list_part, seal_document
from tests.cluster.small_fit import contents, fit


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


def edit(path: Path) -> None:
    """Changes a number of a JSON document, which stays well-formed."""
    document = json.loads(path.read_text())
    position = document["position"] if "position" in document else document["content"]["position"]
    position["batch"] += 1
    path.write_text(json.dumps(document))


def replace(path: Path) -> None:
    """Puts the file of the same name of the older checkpoint there."""
    path.write_bytes(min(path.parents[2].glob(f"step-*/*/{path.name}")).read_bytes())


def link(path: Path) -> None:
    """Leads out of the directory, to what would have been right."""
    path.rename(path.parents[3] / path.name)
    path.symlink_to(path.parents[3] / path.name)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


MANIFEST, PART = "MANIFEST.json", "w00000.part.json"
TENSORS = ("w00000.mirrored.safetensors", "w00000.local.safetensors")
DAMAGE = [
    *((name, damage) for name in (MANIFEST, PART) for damage in (truncate, empty, flip, edit)),
    *((name, damage) for name in TENSORS for damage in (truncate, flip, remove)),
    *((PART, damage) for damage in (remove, replace, link, pipe)),
    (MANIFEST, link),
    (TENSORS[0], replace),
    (TENSORS[1], pipe),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints, after one step and after six."""
    directory = tmp_path_factory.mktemp("run")
    assert fit(directory, strike=(0, 1))[-1:] in ([(0, 0)], [(0, 1)])
    fit(directory, strike=(1, 1))
    return directory


def checkpoints(directory: Path) -> list[Path]:
    return sorted(path.parent for path in directory.glob("step-*/*/MANIFEST.json"))


def damage_id(value: object) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", "")


@pytest.mark.parametrize(("name", "damage"), DAMAGE, ids=damage_id)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_and_this_is_said(
    name: str, damage: Callable[[Path], None], run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "run"
    shutil.copytree(run, directory)
    older, newer = checkpoints(directory)
    damage(newer / name)
    kept = contents(newer)
    with caplog.at_level(logging.INFO, logger="keras_preempt"):
        steps = fit(directory)
    done = int(older.parent.name.removeprefix("step-"))
    assert len(steps) == 8 - done
    events = [json.loads(line) for line in max(directory.glob("events/*")).read_text().splitlines()]
    restore = next(event for event in events if event["event"] == "restore")
    assert restore["checkpoint"] == str(older.relative_to(directory))
    assert [why.partition(":")[0] for why in restore["skipped"]] == [str(newer.relative_to(directory))]
    assert f"{newer.relative_to(directory)} is not used" in caplog.text
    assert contents(newer) == kept, "what is broken is left for a person to look at"


@pytest.mark.parametrize("name", [MANIFEST, PART, *TENSORS])
def test_without_any_checkpoint_that_verifies_training_is_refused_and_all_files_are_kept(
    name: str, run: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    shutil.copytree(run, directory)
    for checkpoint in checkpoints(directory):
        flip(checkpoint / name)
    before = contents(directory)
    with pytest.raises(NoUsableCheckpoint, match="2 that cannot"):
        fit(directory)
    assert contents(directory) == before


@pytest.mark.parametrize("damage", [truncate, empty, flip])
def test_a_run_whose_identity_is_damaged_is_refused_and_all_files_are_kept(
    damage: Callable[[Path], None], run: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    shutil.copytree(run, directory)
    damage(directory / "run.json")
    before = contents(directory)
    with pytest.raises(CorruptCheckpoint, match=r"run\.json"):
        fit(directory)
    assert contents(directory) == before


@pytest.mark.parametrize("damage", [truncate, empty, flip, remove])
def test_a_damaged_claim_of_an_earlier_start_is_told_apart_and_loses_nothing(
    damage: Callable[[Path], None], run: Path, tmp_path: Path
) -> None:
    """What it says is for people; that it is there is what counts."""
    directory = tmp_path / "run"
    shutil.copytree(run, directory)
    claim = directory / "incarnations" / "00001.json"
    damage(claim)
    before = contents(directory)
    if damage is not remove:
        with pytest.raises(CorruptCheckpoint, match=r"incarnations/00001\.json"):
            incarnations.read(LocalStore(directory), 1)
    newest = checkpoints(directory)[-1]
    assert len(fit(directory)) == 8 - int(newest.parent.name.removeprefix("step-"))
    after = contents(directory)
    assert {name: after[name] for name in before if not name.startswith("step-")} == {
        name: data for name, data in before.items() if not name.startswith("step-")
    }


def set_state(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda part: part["state"].update(fields)


@pytest.mark.parametrize(
    "change",
    [
        lambda part: part.update(state={}),
        lambda part: part["state"].pop("random"),
        lambda part: part["state"].pop("evaluation_iterators"),
        set_state(input={}),
        set_state(input={"position": {}, "way": "state"}),
        set_state(input=None),
        set_state(evaluation_iterators=[]),
        set_state(logs={"$": "array", "name": "none"}),
        set_state(logs={"$": "run", "items": ["os.system", "true"]}),
        set_state(stopped="x", callbacks=7),
        set_state(random={"python": 1, "numpy": 2}),
    ],
)
def test_a_state_of_another_structure_is_refused_in_one_line_and_all_files_are_kept(
    change: Callable[[dict[str, Any]], None], run: Path, tmp_path: Path
) -> None:
    """All sums are right: it was written on purpose."""
    directory = tmp_path / "run"
    shutil.copytree(run, directory)
    folder = checkpoints(directory)[-1]
    body = fields_of(folder / PART)
    change(body)
    (folder / PART).write_bytes(seal_document(body))
    list_part(folder, PART)
    before = contents(folder)
    with pytest.raises((CorruptCheckpoint, ValueError), match=r"Expected .* Received: ") as refused:
        fit(directory)
    message = str(refused.value)
    assert message.isprintable()
    assert len(message) < 1000
    assert contents(folder) == before
    # What fit was left by keeps it alive, and the next fit must not begin before this one has given all back.
    del refused
    gc.collect()
