"""Every block of code in README.md and docs/ is run, or compared with what is real; none slips in untested.

All Python code and most commands run in one process (`run_blocks`), which a fixture starts once. What a block needs
around it, and what its output is compared with, stands in the comments above it (`pages`).
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.cli.main import main
from keras_preempt.cluster import Supervisor
from keras_preempt.testing import FakeGcs
from tests.cluster.harness import run_cluster
from tests.docs.commands import SHELLS, Command, assert_names_only_what_is_there, commands_of
from tests.docs.pages import NOTES, PAGES, ROOT, SKIPPED, Block, all_blocks, blocks_of, files, name_of
from tests.docs.shown import SHOWN_BY

#: Run by `run_blocks`, where TensorFlow is imported already.
LOOKING = ("clean", "doctor", "export", "inspect", "report", "save")

#: Run by `test_trained`: those of the first page, and, for minutes, all of them.
TRAINING = ("drill", "run")

#: The comment above a script that is run by itself: a process has one backend, and takes part in one job.
ON_JAX = "processes on jax"

BLOCKS = all_blocks()

Errors = dict[str, str]


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> Errors:
    """What went wrong in each block that runs in the common process."""
    folder = tmp_path_factory.mktemp("blocks")
    request = [asked for asked in map(_asked_of_the_process, BLOCKS) if asked]
    (folder / "request.json").write_text(json.dumps(request))
    script = Path(__file__).with_name("run_blocks.py")
    arguments = [str(folder / "request.json"), str(folder / "results.json")]
    done = run_cluster(script, 1, args=arguments, env={"PYTHONPATH": str(ROOT)}, timeout=400, cwd=folder)
    done.assert_ok()
    found: Errors = json.loads((folder / "results.json").read_text())
    assert len(found) == len(request)
    return found


def _asked_of_the_process(block: Block) -> dict[str, Any] | None:
    asked = {"where": block.where, "names": block.names}
    if block.language == "python" and ON_JAX not in block.notes:
        return {**asked, "code": block.code}
    if block.language in SHELLS and "not run" not in block.notes:
        looking = [command for command in commands_of(block) if command.of_keras_preempt in LOOKING]
        return {**asked, "commands": [command.words[1:] for command in looking]} if looking else None
    return None


def test_every_fence_belongs_to_a_block_and_every_comment_above_one_is_understood() -> None:
    for page in PAGES:
        text = page.read_text()
        fences = re.findall(r"^[ \t]*(?:```|~~~)", text, re.MULTILINE)
        name = name_of(page)
        assert len(fences) == 2 * len(blocks_of(name, text)), f"{name} has a fence out of place"
    for block in BLOCKS:
        assert set(block.notes) <= set(NOTES), f"{block.where}: {set(block.notes) - set(NOTES)}"


def _is_run(block: Block) -> bool:
    return block.language == "python" or block.language in SHELLS


@pytest.mark.parametrize(
    "block",
    [pytest.param(each, id=each.where, marks=pytest.mark.docs if _is_run(each) else ()) for each in BLOCKS],
)
def test_every_block_is_run_or_compared(
    block: Block, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if _is_run(block):
        error = request.getfixturevalue("errors").get(block.where)
        if error and error.startswith(SKIPPED):
            pytest.skip(error)
        assert not error, f"{block.where}\n{error}"
    unknown = f"{block.where}: this block is not run: nothing is known about {block.language!r}"
    assert block.language in CHECKS, unknown
    CHECKS[block.language](block, monkeypatch)


# -- By language -----------------------------------------------------------------------------------------


def check_python(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(block.notes) <= {"with", "file", ON_JAX}, "Python code is run, and not compared"
    if ON_JAX in block.notes:
        check_script_on_jax(block, int(block.notes[ON_JAX]))


def check_script_on_jax(block: Block, processes: int) -> None:
    """Runs a script in several processes, which together train one model on JAX."""
    pytest.importorskip("jax")
    Path("train.py").write_text(block.code)
    env = {"KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT)}
    done = run_cluster(Path("train.py").resolve(), processes, env=env, cwd=Path.cwd()).assert_ok()
    assert f"Watching over {processes} worker" in done.outputs[0]


def check_shell(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = commands_of(block)
    assert commands, f"{block.where}: this block is not run: it has no command"
    for name, code in files().items():
        Path(name).write_text(code)
    if "not run" in block.notes:
        assert_names_only_what_is_there(commands, block.notes["not run"])
        return
    for command in commands:
        if command.of_keras_preempt in TRAINING:
            check_options(command, monkeypatch)
        elif command.words[0] == "python" and "serves" in block.notes:
            check_service(command, block.notes["serves"])
        elif command.words[0] == "python":
            check_script(command, int(block.notes.get("exit status", 0)))
        else:
            known = command.of_keras_preempt in LOOKING
            assert known, f"{block.where}: this block is not run: {' '.join(command.words)}"


def check_text(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test elsewhere compares it; of figures, one runs the benchmark that has printed them."""
    if script := block.notes.get("figures of"):
        others = ("test_resume_cost.py", "test_many_workers.py")
        tests = [*(ROOT / "tests").glob("test_*benchmark*.py"), *(ROOT / "tests" / name for name in others)]
        assert any(f'"{script}"' in test.read_text() for test in tests), f"no test runs {script}"
        return
    name = block.notes.get("output of") or block.notes.get("shown after")
    assert name, f"{block.where}: this block is not run: say whose output it is"
    assert name in SHOWN_BY, f"{block.where}: no test shows {name!r}"
    test = (ROOT / SHOWN_BY[name]).read_text()
    function = "assert_shown" if "output of" in block.notes else "assert_shown_after"
    assert f'{function}("{name}"' in test, f"{SHOWN_BY[name]} does not compare {block.where}"


def check_toml(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings for the reader's project: our own has each line of them, and our tests run with it."""
    ours = (ROOT / "pyproject.toml").read_text().splitlines()
    assert set(block.code.splitlines()) <= set(ours)


def check_json(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test elsewhere tries it."""
    json.loads(block.code)
    test, page = ROOT / block.notes["tried by"], block.where.partition(":")[0]
    assert f'"{page}"' in test.read_text(), f"{test} does not read {block.where}"


CHECKS: dict[str, Callable[[Block, pytest.MonkeyPatch], None]] = {
    "python": check_python,
    **dict.fromkeys(SHELLS, check_shell),
    "text": check_text,
    "json": check_json,
    "toml": check_toml,
}


# -- Commands that the common process does not run --------------------------------------------------------


class Started(Exception):
    """A command has understood all of its options and would train now."""


def check_options(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a command that trains, up to where it would start the first process."""

    def start(*arguments: object, **named: object) -> None:
        raise Started

    monkeypatch.setattr(Supervisor, "run", start)
    with FakeGcs(buckets=("bucket",)) as gcs:
        for name, value in gcs.environment().items():
            monkeypatch.setenv(name, value)
        with pytest.raises(Started):
            main(command.words[1:])


def check_script(command: Command, status: int) -> None:
    """Runs a script of the pages with the variables of the command line."""
    found = run_cluster(Path(command.words[1]).resolve(), 1, env=command.variables, cwd=Path.cwd())
    # As a shell tells the end by a signal.
    (code,) = [128 - code if code < 0 else code for code in found.codes]
    assert code == status, found.outputs[0]


def check_service(command: Command, first_line: str) -> None:
    """Starts a program that runs until it is ended."""
    with subprocess.Popen([sys.executable, *command.words[1:]], stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            line = service.stdout.readline()
            pattern = ".*".join(re.escape(part) for part in first_line.split("..."))
            assert re.fullmatch(pattern, line.strip()), line
        finally:
            service.send_signal(signal.SIGTERM)
            service.communicate(timeout=60)
