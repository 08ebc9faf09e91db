"""Each directory of a drilled script has one of its own below the drill's, the same in every start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.process import environment
from keras_preempt.training import drill_place


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(environment.DRILL_DIRECTORY, str(tmp_path))
    monkeypatch.delenv(environment.DIRECTORY, raising=False)
    return str(tmp_path)


def test_outside_a_drill_a_directory_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.DRILL_DIRECTORY, raising=False)
    monkeypatch.delenv(environment.DIRECTORY, raising=False)
    assert drill_place.replaced("runs/1") == "runs/1"
    monkeypatch.setenv(environment.DIRECTORY, "elsewhere")
    assert drill_place.replaced("runs/1") == "elsewhere"


@pytest.mark.parametrize(
    "spelling",
    [
        "runs/1",
        "runs/1/",
        "./runs/1",
        "runs/../runs/1",
        Path("runs/1"),
        os.path.join(os.getcwd(), "runs", "1"),
    ],
)
def test_one_directory_has_one_place_however_it_is_spelt(root: str, spelling: str | Path) -> None:
    assert drill_place.replaced(spelling) == drill_place.replaced("runs/1")


def test_different_directories_have_different_places(root: str, tmp_path: Path) -> None:
    directories = [
        "runs/1",
        "runs/2",
        "other/1",
        str(tmp_path / "runs/1"),
        "gs://bucket/runs/1",
        "gs://b/runs/1",
        "a b",
    ]
    places = [str(drill_place.replaced(directory)) for directory in directories]
    assert len(set(places)) == len(places)
    assert all(place.startswith(f"{root}/") for place in places)


def test_words_that_mean_another_directory_after_a_change_of_folder_have_another_place(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = drill_place.replaced("checkpoints")
    monkeypatch.chdir(tmp_path)
    assert drill_place.replaced("checkpoints") != before


def test_a_fit_is_named_by_its_place_and_known_by_the_words_of_the_script(root: str) -> None:
    place = str(drill_place.replaced("runs/first one"))
    name = drill_place.fit_name(open_store(f"{place}/fit-00002").key)
    assert name == f"{os.path.basename(place)}/fit-00002"
    assert drill_place.given(name) == "runs/first one"


@pytest.mark.parametrize("directory", ["", "  ", "a\0b", 3, None])
def test_what_is_no_directory_is_left_to_be_refused(root: str, directory: object) -> None:
    assert drill_place.replaced(directory) == directory  # type: ignore[arg-type]
