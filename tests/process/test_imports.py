"""What is started often, or beside a training, imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMANDS = (
    "main",
    "run",
    "drill.command",
    "drill.runs",
    "drill.cause",
    "inspect",
    "export",
    "clean",
    "report",
)
NOTICES = [f"keras_preempt.notices.{name}" for name in ("aws", "azure", "gce", "polling", "signals")]


@pytest.mark.parametrize(
    ("imported", "then", "heavy"),
    [
        (
            [f"keras_preempt.cli.{name}" for name in COMMANDS],
            "",
            {"tensorflow", "keras", "google.cloud.storage"},
        ),
        ([*NOTICES, "keras_preempt.testing.metadata.fake"], "", {"tensorflow", "keras", "numpy", "requests"}),
        (["keras_preempt.testing.pytest_plugin"], "", {"tensorflow", "keras"}),
        (
            ["keras_preempt.testing"],
            "with keras_preempt.testing.FakeGcs(): pass",
            {"tensorflow", "keras", "google.cloud.storage"},
        ),
    ],
    ids=["commands", "notices", "drills", "buckets"],
)
def test_it_is_imported_without(imported: list[str], then: str, heavy: set[str]) -> None:
    program = f"import sys, {', '.join(imported)}\n{then}\nprint({heavy} & set(sys.modules))\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n", done.stderr
