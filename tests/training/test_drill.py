"""A drill sends its signal at the chosen moment, to the chosen worker, and once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.agreement.alignment import Position
from keras_preempt.checkpoint import failpoints
from keras_preempt.process import environment
from keras_preempt.training.rehearsal import HALF_WRITTEN, Drill

ME = os.getpid()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """Signals that would have been sent: (process, signal)."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda process, number: found.append((process, number)))
    yield found
    failpoints.unwatch(HALF_WRITTEN)


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
    "value",
    [
        *("ten", "10", "[]", {"member": 0}, {"step": 1}, {"member": 0, "step": None}),
        *({"member": 0, "step": 1, "at": "lunch"}, {"member": 0, "step": 1, "signal": "SIGNAL"}),
    ],
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


@pytest.mark.parametrize(
    ("position", "strikes"),
    [
        (Position(0, "train", 5, 5), False),
        (Position(0, "validation", 1, 5), False),
        (Position(0, "validation", 2, 5), True),
        (Position(1, "validation", 0, 10), True),  # that validation was passed over by a restart
    ],
)
def test_a_validation_is_struck_in_the_middle(
    sent: list[tuple[int, int]], position: Position, strikes: bool
) -> None:
    assert Drill(5, at="validation", batch=2).strike(position) is strikes
    assert len(sent) == strikes


def test_a_kill_comes_without_a_notice_and_another_signal_instead_of_the_usual_one(
    sent: list[tuple[int, int]],
) -> None:
    assert Drill(1, kill=True).strike(Position(0, "train", 1, 1))
    assert Drill(1, signal=signal.SIGUSR1).strike(Position(0, "train", 1, 1))
    assert sent == [(ME, signal.SIGKILL), (ME, signal.SIGUSR1)]


def test_a_save_is_struck_when_it_is_half_written_and_holds_the_step_or_a_later_one(
    sent: list[tuple[int, int]],
) -> None:
    steps = iter([None, 4, 10, 12])
    drill = Drill(8, at="saving")
    drill.begin(lambda: next(steps))
    assert drill.strike(Position(0, "train", 10, 10))  # Needs no boundary.
    for expected in (0, 0, 1, 1):
        failpoints.point("save.before-parts")
        failpoints.point(HALF_WRITTEN)
        assert len(sent) == expected


@pytest.mark.parametrize("kill", [False, True])
def test_the_answer_to_the_notice_is_struck_as_well(sent: list[tuple[int, int]], kill: bool) -> None:
    drill = Drill(3, at="leaving", kill=kill)
    failpoints.point(HALF_WRITTEN)
    assert not drill.strike(Position(0, "train", 2, 2))
    assert drill.strike(Position(0, "train", 3, 3))
    assert sent == [(ME, signal.SIGTERM)]
    for _ in range(2):
        failpoints.point(HALF_WRITTEN)
        assert sent == [(ME, signal.SIGTERM), (ME, signal.SIGKILL if kill else signal.SIGTERM)]


def test_a_fit_that_ends_leaves_no_trap_behind(sent: list[tuple[int, int]]) -> None:
    drill = Drill(0, at="saving")
    drill.begin(lambda: 5)
    drill.end()
    failpoints.point(HALF_WRITTEN)
    assert sent == []


def test_the_moment_is_told_to_whoever_listens_and_comes_also_if_nobody_does(
    sent: list[tuple[int, int]], tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    assert Drill(1, tell=str(pipe)).strike(Position(0, "train", 1, 1))
    told = json.loads(os.read(reader, 4096))
    os.close(reader)
    assert (told["signal"], told["pid"]) == ("SIGTERM", ME)
    assert Drill(1, tell=str(pipe)).strike(Position(0, "train", 1, 1))
    assert Drill(1, tell=str(tmp_path / "none")).strike(Position(0, "train", 1, 1))
    assert len(sent) == 3


class Arriving:
    """Notices, of which one arrives where the signal is waited for, or none."""

    def __init__(self, arrives: bool) -> None:
        self.asked: list[tuple[int, Position | None]] = []
        self._arrives = arrives

    def stand(self, at: Position | None) -> int:
        return 3

    def heard_more_than(self, count: int, timeout: float, at: Position | None) -> bool:
        self.asked.append((count, at))
        return self._arrives


@pytest.mark.parametrize(("arrives", "outcome"), [(True, "arrived"), (False, "lost")])
def test_a_signal_from_outside_is_asked_for_and_waited_for_and_none_is_sent_by_this_process(
    sent: list[tuple[int, int]], tmp_path: Path, arrives: bool, outcome: str
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    here, heard = Position(0, "train", 1, 1), Arriving(arrives)
    assert Drill(1, tell=str(pipe), outside=True).strike(here, heard)
    asked, told = (json.loads(line) for line in os.read(reader, 4096).splitlines())
    os.close(reader)
    assert (asked["signal"], asked["wanted"]) == ("SIGTERM", True)
    assert told == {outcome: "SIGTERM", "pid": ME}
    assert heard.asked == [(3, here)]
    assert sent == []


def test_only_the_fit_that_is_meant_is_struck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.DRILL, json.dumps({"member": 0, "step": 10, "fit": "a-1/fit-00002"}))
    assert Drill.from_environment(0, "a-1") is None
    assert Drill.from_environment(0, "a-1/fit-00002") is not None


def test_a_script_without_tensorflow_can_be_drilled() -> None:
    code = "import sys, keras_preempt.training.rehearsal; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
