from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from keras_preempt import environment
from keras_preempt.alignment import Position
from keras_preempt.drill import Drill


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Signals that would have been sent: (process, signal)."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda process, number: found.append((process, number)))
    return found


def drill(monkeypatch: pytest.MonkeyPatch, value: Any, member: int = 0) -> Drill | None:
    monkeypatch.setenv(environment.DRILL, value if isinstance(value, str) else json.dumps(value))
    return Drill.from_environment(member)


def test_without_the_variable_there_is_no_drill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.DRILL, raising=False)
    assert Drill.from_environment(0) is None
    assert drill(monkeypatch, "") is None


def test_only_the_worker_that_is_meant_is_struck(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drill(monkeypatch, {"member": 1, "step": 10}, member=0) is None
    assert drill(monkeypatch, {"member": 1, "step": 10}, member=1) == Drill(10)


@pytest.mark.parametrize(
    "value", ["ten", "10", "[]", {"member": 0}, {"step": 1}, {"member": 0, "step": None}]
)
def test_anything_but_a_drill_is_refused_by_the_name_of_the_variable(
    monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    with pytest.raises(ValueError, match=environment.DRILL):
        drill(monkeypatch, value)


@pytest.mark.parametrize(
    ("position", "strikes"),
    [
        (Position(0, "train", 9, 9), False),
        (Position(0, "train", 10, 10), True),
        (Position(1, "train", 0, 12), True),  # several steps an execution pass over it
        (Position(0, "validation", 3, 10), False),
        (Position(1, "epoch", 0, 10), False),
        (Position(2, "end", 0, 10), False),
    ],
)
def test_the_signal_is_real_and_comes_right_before_the_step(
    sent: list[tuple[int, int]], position: Position, strikes: bool
) -> None:
    assert Drill(10).strike(position) is strikes
    assert sent == ([(os.getpid(), signal.SIGTERM)] if strikes else [])
