"""A drill sends its signal at the chosen moment, to the chosen worker, and once, and has places of its own."""

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
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.process import environment
from keras_preempt.training import drill_place
from keras_preempt.training.rehearsal import HALF_WRITTEN, Drill

ME = os.getpid()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """Signals that would have been sent: (process, signal)."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda process, number: found.append((process, number)))
    yield found
    failpoints.unwatch(HALF_WRITTEN)


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """One to tell the drill of, and where it is read."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDWR)
    yield str(tmp_path / "pipe"), reader
    os.close(reader)


def drill(monkeypatch: pytest.MonkeyPatch, value: Any, member: int = 0) -> Drill | None:
    monkeypatch.setenv(environment.DRILL, value if isinstance(value, str) else json.dumps(value))
    return Drill.from_environment(member)


def test_only_the_worker_and_the_fit_that_are_meant_are_struck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.DRILL, raising=False)
    assert Drill.from_environment(0) is None
    assert drill(monkeypatch, "") is None
    assert drill(monkeypatch, {"member": 1, "step": 10}, member=0) is None
    assert drill(monkeypatch, {"member": 1, "step": 10}, member=1) == Drill(10)
    assert drill(monkeypatch, {"member": 0, "step": 10, "fit": "a-1/fit-00002"}) is None
    assert Drill.from_environment(0, "a-1") is None
    assert Drill.from_environment(0, "a-1/fit-00002") is not None


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


BEFORE_A_STEP, IN_A_VALIDATION = Drill(10), Drill(5, at="validation", batch=2)


@pytest.mark.parametrize(
    ("drill", "position", "strikes"),
    [
        (BEFORE_A_STEP, Position(0, "train", 9, 9), False),
        (BEFORE_A_STEP, Position(0, "train", 10, 10), True),
        (BEFORE_A_STEP, Position(1, "train", 0, 12), True),  # several steps an execution pass over it
        (BEFORE_A_STEP, Position(0, "validation", 3, 10), False),
        (BEFORE_A_STEP, Position(1, "epoch", 0, 10), False),
        (BEFORE_A_STEP, Position(2, "end", 0, 10), False),
        (IN_A_VALIDATION, Position(0, "train", 5, 5), False),
        (IN_A_VALIDATION, Position(0, "validation", 1, 5), False),
        (IN_A_VALIDATION, Position(0, "validation", 2, 5), True),
        (IN_A_VALIDATION, Position(1, "validation", 0, 10), True),  # a restart passed over that validation
    ],
)
def test_the_signal_is_real_and_comes_right_before_the_step_or_in_the_middle_of_a_validation(
    sent: list[tuple[int, int]], drill: Drill, position: Position, strikes: bool
) -> None:
    assert drill.strike(position) is strikes
    assert sent == ([(ME, signal.SIGTERM)] if strikes else [])


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
    ended = Drill(0, at="saving")
    ended.begin(lambda: 5)
    ended.end()
    failpoints.point(HALF_WRITTEN)
    assert len(sent) == 1, "a fit that ends leaves no trap behind"


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


def test_the_moment_is_told_to_whoever_listens_and_comes_also_if_nobody_does(
    sent: list[tuple[int, int]], pipe: tuple[str, int], tmp_path: Path
) -> None:
    path, reader = pipe
    assert Drill(1, tell=path).strike(Position(0, "train", 1, 1))
    told = json.loads(os.read(reader, 4096))
    assert (told["signal"], told["pid"]) == ("SIGTERM", ME)
    assert Drill(1, tell=str(tmp_path / "none")).strike(Position(0, "train", 1, 1))
    assert len(sent) == 2


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
    sent: list[tuple[int, int]], pipe: tuple[str, int], arrives: bool, outcome: str
) -> None:
    here, heard = Position(0, "train", 1, 1), Arriving(arrives)
    assert Drill(1, tell=pipe[0], outside=True).strike(here, heard)
    asked, told = (json.loads(line) for line in os.read(pipe[1], 4096).splitlines())
    assert (asked["signal"], asked["wanted"]) == ("SIGTERM", True)
    assert told == {outcome: "SIGTERM", "pid": ME}
    assert heard.asked == [(3, here)]
    assert sent == []


def test_a_script_without_tensorflow_can_be_drilled() -> None:
    code = "import sys, keras_preempt.training.rehearsal; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(environment.DRILL_DIRECTORY, str(tmp_path))
    monkeypatch.delenv(environment.DIRECTORY, raising=False)
    return str(tmp_path)


def test_outside_a_drill_a_directory_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.DRILL_DIRECTORY, raising=False)
    monkeypatch.delenv(environment.DIRECTORY, raising=False)
    assert drill_place.replaced("runs/1") == "runs/1"
    monkeypatch.setenv(environment.DIRECTORY, "elsewhere")
    assert drill_place.replaced("runs/1") == "elsewhere"


@pytest.mark.parametrize(
    "spelling",
    ["runs/1/", "./runs/1", "runs/../runs/1", Path("runs/1"), os.path.join(os.getcwd(), "runs", "1")],
)
def test_one_directory_has_one_place_however_it_is_spelt(root: str, spelling: str | Path) -> None:
    assert drill_place.replaced(spelling) == drill_place.replaced("runs/1")


def test_different_directories_have_different_places_also_after_a_change_of_folder(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = ["runs/1", "runs/2", "other/1", str(tmp_path / "runs/1"), "a b"]
    places = [str(drill_place.replaced(each)) for each in [*local, "gs://bucket/runs/1", "gs://b/runs/1"]]
    monkeypatch.chdir(tmp_path)
    places.append(str(drill_place.replaced("other/1")))
    assert len(set(places)) == len(places)
    assert all(place.startswith(f"{root}/") for place in places)


def test_a_fit_is_named_by_its_place_and_known_by_the_words_of_the_script(root: str) -> None:
    place = str(drill_place.replaced("runs/first one"))
    name = drill_place.fit_name(open_store(f"{place}/fit-00002").key)
    assert name == f"{os.path.basename(place)}/fit-00002"
    assert drill_place.given(name) == "runs/first one"


@pytest.mark.parametrize("directory", ["", "  ", "a\0b", 3, None])
def test_what_is_no_directory_is_left_to_be_refused(root: str, directory: object) -> None:
    assert drill_place.replaced(directory) == directory  # type: ignore[arg-type]
