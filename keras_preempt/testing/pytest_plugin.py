"""The fixture `preemption_drill`, which pytest finds wherever keras-preempt is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.testing.drills.running import drill
from keras_preempt.testing.drills.verdict import DrillVerdict


@pytest.fixture
def preemption_drill(tmp_path: Path) -> Callable[..., DrillVerdict]:
    """`keras_preempt.testing.drill`, whose log is a file in `tmp_path`; a test that fails shows the verdict.

    pytest keeps the folders `tmp_path` of the last three runs.
    """
    count = 0

    def run(target: Any, *arguments: Any, **options: Any) -> DrillVerdict:
        nonlocal count
        count += 1
        verdict = drill(target, *arguments, **{"log": tmp_path / f"drill-{count}.log", **options})
        print(f"drill {count}: {verdict}")
        return verdict

    return run
