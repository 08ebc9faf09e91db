"""What happens to a run is seen without any set-up, once, and where the program wants it if it says so."""

from __future__ import annotations

import subprocess
import sys

import pytest

SHOW = "import logging\nfrom keras_preempt.process import log\n"
SAY = "logging.getLogger('keras_preempt').warning('said')\n"


def shown(script: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if "said" in line]


OURS, MINE = ["keras_preempt: said"], ["mine said"]
CASES = {
    "alone": ("log.show()", OURS),
    "twice": ("log.show()\nlog.show()", OURS),
    "info before": ("logging.info('x')\nlog.show()", OURS),
    "info after": ("log.show()\nlogging.info('x')", OURS),
    "absl after": ("log.show()\nimport absl.logging\nabsl.logging.use_absl_handler()", OURS),
    "set up before": ("logging.basicConfig(format='mine %(message)s')\nlog.show()", MINE),
    "set up after": ("log.show()\nlogging.basicConfig(format='mine %(message)s', level=10)", MINE),
    "silenced": ("logging.getLogger('keras_preempt').setLevel('ERROR')\nlog.show()", []),
}


@pytest.mark.parametrize(("script", "lines"), CASES.values(), ids=CASES)
def test_a_line_is_shown_once(script: str, lines: list[str]) -> None:
    assert shown(f"{SHOW}{script}\n{SAY}") == lines
