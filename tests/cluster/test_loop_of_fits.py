"""A loop of fits is as quiet as one fit: what is the same for all is said once, and a restart in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.harness import run_cluster

SCRIPT = Path(__file__).parent / "scripts" / "loop_of_fits.py"
STEPS, FITS = 4, 5


def _start(how: str, directory: Path, strike: int | None = None) -> tuple[int, list[str], list[str], int]:
    """Returns the exit code, what we have logged, what the script has ended with, and how many steps it ran."""
    arguments = [how, str(directory), *([] if strike is None else [str(strike)])]
    result = run_cluster(SCRIPT, 1, args=arguments, timeout=240)
    lines = result.outputs[0].splitlines()
    ours = [line.partition("keras_preempt: ")[2] for line in lines if line.startswith("keras_preempt: ")]
    return result.codes[0], ours, [line for line in lines if "ENDED WITH" in line], lines.count("RAN")


def _count(lines: list[str], words: str) -> int:
    return sum(words in line for line in lines)


@pytest.mark.parametrize(
    "how",
    [
        "one callback",
        *(pytest.param(how, marks=pytest.mark.chaos) for how in ("one directory", "directories")),
    ],
)
def test_a_loop_of_fits_says_each_thing_once(how: str, tmp_path: Path) -> None:
    code, undisturbed, expected, steps = _start(how, tmp_path / "undisturbed")
    assert (code, steps) == (0, FITS * STEPS)
    assert _count(undisturbed, "Platform: ") == 1
    assert _count(undisturbed, "bit-identical") == (FITS if how == "directories" else 1)
    assert _count(undisturbed, "This is fit") == (0 if how == "directories" else 1)
    assert _count(undisturbed, "had ended") == 0
    # Preempted in the fourth fit, which goes on with its second step.
    code, _, _, steps = _start(how, tmp_path / "run", 3 * STEPS + 1)
    assert (code, steps) == (75, 3 * STEPS + 2)
    code, again, ended, steps = _start(how, tmp_path / "run")
    assert (code, steps, ended) == (0, 2 * STEPS - 2, expected)
    (line,) = (line for line in again if "Continuing from" in line)
    assert line.startswith("3 fits before this one had ended, and trained nothing now. ")
    assert _count(again, "Platform: ") == 1
    assert _count(again, "Raise") == 0
    assert _count(again, "had ended") == 1
    assert _count(again, "bit-identical") == (2 if how == "directories" else 1)
    # All of it is over: the end says so, once.
    code, over, ended, steps = _start(how, tmp_path / "run")
    assert (code, steps, ended) == (0, 0, expected)
    platform, end = over
    assert platform.startswith("Platform: ")
    assert end.startswith("Training is over already: all 5 fits of this process had ended")
