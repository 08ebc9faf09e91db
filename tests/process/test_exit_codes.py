"""Which exit status an error has that leaves the program: in processes of their own, since that is who has one."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys
from keras_preempt.process.exit_codes import exits_with
atexit.register(lambda: print("last value", type(sys.last_value).__name__))
error = ValueError("why")
exits_with(error, 69)
"""


def ended(program: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *flags, "-c", PROGRAM + program], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    "program",
    [
        "raise error",
        "try:\n  raise error\nfinally:\n  print('cleaned up')",
        "try:\n  raise error\nexcept ValueError as e:\n  raise RuntimeError('training failed') from e",
        "try:\n  raise error\nexcept ValueError:\n  {}['no such key']",
        "raise error from ValueError('cause')",
    ],
)
def test_an_error_that_leaves_the_program_ends_it_with_its_status_and_its_traceback(program: str) -> None:
    process = ended(program)
    assert process.returncode == 69
    assert "Traceback (most recent call last)" in process.stderr
    assert "ValueError: why" in process.stderr
    assert "excepthook" not in process.stderr
    assert "last value" in process.stdout  # What is to be done at the end of the program is done.


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("raise RuntimeError('another')", 1),
        ("try:\n  raise error\nexcept ValueError:\n  pass", 0),
        ("try:\n  raise error\nexcept ValueError:\n  sys.exit(3)", 3),
        ("try:\n  raise error\nexcept ValueError:\n  raise RuntimeError('another') from None", 1),
    ],
)
def test_another_end_of_the_program_is_as_ever(program: str, code: int) -> None:
    assert ended(f"{program}\nsys.last_value = None").returncode == code


def test_the_hook_of_the_program_is_called_as_well() -> None:
    process = ended("sys.excepthook = lambda *what: print('mine')\nexits_with(error, 69)\nraise error")
    assert process.returncode == 69
    assert process.stdout.startswith("mine")
    assert process.stderr == ""


def test_two_errors_install_one_hook() -> None:
    process = ended(
        "hook = sys.excepthook\nexits_with(KeyError(), 70)\nprint(sys.excepthook is hook)\nraise error"
    )
    assert (process.returncode, process.stdout.splitlines()[0]) == (69, "True")


def test_nobody_judges_an_error_that_has_its_status() -> None:
    """Who judges may also say something, which was said when the error got its status."""
    judge = "from keras_preempt.process.exit_codes import exits_by\nexits_by(lambda error: print('asked'))\n"
    assert "asked" not in ended(f"{judge}raise error").stdout
    assert "asked" in ended(f"{judge}raise RuntimeError('another')").stdout
