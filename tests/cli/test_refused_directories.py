"""What the commands that look at a run say of a directory that they cannot work on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint.layout import RUN
from tests.cli.saved_run import Run, begin, contents, save
from tests.cli.test_inspect import newer

COMMANDS = ["inspect", "export", "clean"]
Refused = Callable[[str, Path], str]


@pytest.fixture
def refused(run: Run) -> Refused:
    """Has a command refuse a directory; returns what it says, which is one line."""

    def refused(command: str, path: Path) -> str:
        out = ["/tmp/out.safetensors"] if command == "export" else []  # in a folder that anybody may look at
        _, err = run(command, path, *out, code=3)
        assert err.count("\n") == 1
        return err

    return refused


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    save(begin(path), 6)
    return path


def file(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.touch()


def above(path: Path) -> None:
    path.mkdir()
    begin(path / "a")
    begin(path / "b")


def below(path: Path) -> None:
    save(begin(path), 6)
    os.rename(path / "step-00000006", path.parent / "moved")
    os.rename(path, path.parent / "run")
    os.rename(path.parent / "moved", path)


def without_run(path: Path) -> None:
    save(begin(path), 6)
    (path / RUN).unlink()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Path.mkdir, "which is empty. Pass the directory that was given to the callback"),
        (lambda path: None, "which does not exist. Check the spelling"),
        (file, "which is no directory"),
        (lambda path: file(path / "thesis.txt"), "with other files in it"),
        (lambda path: file(path / "ckpt-1.index"), "which holds checkpoints of TensorFlow"),
        (above, "which holds runs: {path}/a, {path}/b. Pass one of them."),
        (below, "which is one checkpoint of a run. Pass the directory above"),
        (without_run, "which has checkpoints, but lost its run.json"),
    ],
)
@pytest.mark.parametrize("command", [*COMMANDS, "report", "save"])
def test_a_directory_without_a_run_is_named_with_what_to_pass_instead(
    make: Callable[[Path], Any], said: str, command: str, tmp_path: Path, refused: Refused
) -> None:
    path = tmp_path / "given"
    make(path)
    before = contents(tmp_path)
    err = refused(command, path)
    assert err.startswith("Error: Expected the directory of a run, with run.json in it. Received: ")
    assert said.format(path=path) in err
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("command", "place"), [*((each, RUN) for each in COMMANDS), ("report", "events")])
def test_no_permission_is_one_line_with_a_cure(
    directory: Path, command: str, place: str, run: Run, refused: Refused
) -> None:
    run(command, "--help")  # Imports what it needs, while this process may read.
    (directory / "events").mkdir(exist_ok=True)
    (directory / place).chmod(0)
    own = os.geteuid()
    os.seteuid(65534 if own == 0 else own)  # root may read everything
    try:
        err = refused(command, directory)
    finally:
        os.seteuid(own)
        (directory / place).chmod(0o700)
    assert "ermission denied. Give the user" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_newer_format_of_the_run_is_refused_with_the_version_that_is_needed(
    directory: Path, command: str, refused: Refused
) -> None:
    newer(directory / RUN, format=2)
    said = "format version 2. Install a keras-preempt release that reads format version 2."
    assert said in refused(command, directory)
