"""What ``keras-preempt inspect``, ``export`` and ``clean`` say of a directory that they cannot work on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint.layout import RUN
from tests.cli.saved_run import begin, run, save
from tests.cli.test_inspect import newer


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    save(begin(path), 6)
    return path


def _empty(path: Path) -> str:
    path.mkdir()
    return "which is empty. Pass the directory that was given to the callback"


def _missing(path: Path) -> str:
    return "which does not exist. Check the spelling"


def _file(path: Path) -> str:
    path.write_text("")
    return "which is no directory"


def _others(path: Path) -> str:
    path.mkdir()
    (path / "thesis.txt").write_text("")
    return "with other files in it"


def _tensorflows(path: Path) -> str:
    path.mkdir()
    (path / "ckpt-1.index").write_text("")
    return "which holds checkpoints of TensorFlow"


def _above(path: Path) -> str:
    path.mkdir()
    begin(path / "a")
    begin(path / "b")
    return f"which holds runs: {path}/a, {path}/b. Pass one of them."


def _below(path: Path) -> str:
    store = begin(path)
    save(store, 6)
    os.rename(path / "step-00000006", path.parent / "moved")
    os.rename(path, path.parent / "run")
    os.rename(path.parent / "moved", path)
    return "which is one checkpoint of a run. Pass the directory above"


def _without_run(path: Path) -> str:
    save(begin(path), 6)
    (path / RUN).unlink()
    return "which has checkpoints, but lost its run.json"


@pytest.mark.parametrize(
    "make",
    [_empty, _missing, _file, _others, _tensorflows, _above, _below, _without_run],
    ids=lambda make: make.__name__,
)
@pytest.mark.parametrize("command", ["inspect", "export", "clean"])
def test_a_directory_without_a_run_is_named_with_what_to_pass_instead(
    tmp_path: Path, make: Any, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "given"
    said = make(path)
    out = [str(tmp_path / "out.safetensors")] if command == "export" else []
    code, _, err = run(capsys, command, str(path), *out)
    assert code == 3
    assert err.startswith("Error: Expected the directory of a run, with run.json in it. Received: ")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["inspect", "export", "clean"])
def test_no_permission_is_one_line_with_a_cure(
    directory: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["/tmp/out.safetensors"] if command == "export" else []  # in a folder that anybody may look at
    run(capsys, command, "--help")  # Imports what it needs, while this process may read.
    (directory / RUN).chmod(0)
    if os.geteuid() == 0:  # who may read everything
        os.seteuid(65534)
        try:
            code, _, err = run(capsys, command, str(directory), *out)
        finally:
            os.seteuid(0)
    else:
        code, _, err = run(capsys, command, str(directory), *out)
    assert code == 3
    assert "Permission denied. Check the permissions" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["inspect", "export", "clean"])
def test_a_newer_format_of_the_run_is_refused_with_the_version_that_is_needed(
    directory: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    newer(directory / RUN, format=2)
    out = [str(tmp_path / "out.safetensors")] if command == "export" else []
    code, _, err = run(capsys, command, str(directory), *out)
    assert code == 3
    assert "format version 2. Install a keras-preempt release that reads format version 2." in err
