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


@pytest.mark.parametrize(
    ("script", "lines"),
    [
        (SHOW + "log.show()\n" + SAY, ["keras_preempt: said"]),
        (SHOW + "log.show()\nlog.show()\n" + SAY, ["keras_preempt: said"]),
        (SHOW + "logging.info('x')\nlog.show()\n" + SAY, ["keras_preempt: said"]),
        (SHOW + "log.show()\nlogging.info('x')\n" + SAY, ["keras_preempt: said"]),
        (
            SHOW + "log.show()\nimport absl.logging\nabsl.logging.use_absl_handler()\n" + SAY,
            ["keras_preempt: said"],
        ),
        (SHOW + "logging.basicConfig(format='mine %(message)s')\nlog.show()\n" + SAY, ["mine said"]),
        (
            SHOW + "log.show()\nlogging.basicConfig(format='mine %(message)s', level=10)\n" + SAY,
            ["mine said"],
        ),
        (SHOW + "logging.getLogger('keras_preempt').setLevel('ERROR')\nlog.show()\n" + SAY, []),
    ],
    ids=[
        "alone",
        "twice",
        "info before",
        "info after",
        "absl after",
        "set up before",
        "set up after",
        "silenced",
    ],
)
def test_a_line_is_shown_once(script: str, lines: list[str]) -> None:
    assert shown(script) == lines
