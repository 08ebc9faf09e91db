"""Whatever becomes of the drill's own output, its terminal or itself: as with ``keras-preempt run``."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.drill.test_command import TRAIN
from tests.cli.launched import ENV, command_line


def start(tmp: Path, *options: str, before: str = 'exec "$@"', fault: str = "") -> subprocess.Popen[str]:
    """Starts a drill; `before` is a shell command that becomes it."""
    return subprocess.Popen(
        ["sh", "-c", before, "sh", *command_line("drill", *options, "--at", "step:4", "--", *TRAIN)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENV, "FAKE_FAULT": fault, "TMPDIR": str(tmp)},
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str], code: int) -> tuple[str, str]:
    """Waits until it ends with a status; returns its output and errors."""
    output, errors = process.communicate(timeout=120)
    assert process.returncode == code, output + errors
    return output, errors


@pytest.fixture
def stays(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A drill whose worker has got its signal, and stays."""
    process = start(tmp_path, fault="stays")
    assert process.stdout is not None
    assert any("gets SIGTERM now" in line for line in process.stdout)
    yield process
    process.kill()
    process.communicate()


def test_a_drill_whose_output_is_closed_goes_on_to_its_verdict(tmp_path: Path) -> None:
    output, error = ended(start(tmp_path, before='exec "$@" >&-'), 0)
    assert output == ""
    assert error.count("it is closed") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_drill_that_is_told_to_stop_ends_its_workers_and_has_no_verdict(
    number: signal.Signals, tmp_path: Path
) -> None:
    process = start(tmp_path, fault="waits")
    assert process.stdout is not None
    try:
        assert any("starting again" in line for line in process.stdout)
        process.send_signal(number)
        output, error = ended(process, 3)
    finally:
        process.kill()
    assert f"stopped by {number.name}" in output + error
    assert "VERDICT" not in output
    assert list(tmp_path.iterdir()) == []


def test_the_files_of_a_killed_drill_are_removed_at_the_next_start(
    stays: subprocess.Popen[str], tmp_path: Path
) -> None:
    stays.kill()
    stays.communicate(timeout=120)  # Its workers hold the other end of its output, and end with it.
    assert list(tmp_path.iterdir()) != []
    ended(start(tmp_path), 0)
    assert list(tmp_path.iterdir()) == []


def test_a_verdict_in_json_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    _, error = ended(start(tmp_path, "--json", before='exec "$@" >/dev/full'), 1)
    says = "Expected to write to standard output. Received: No space left on device."
    assert error.splitlines()[-1] == f"Error: {says}"
    assert list(tmp_path.iterdir()) == []
