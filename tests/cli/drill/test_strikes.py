from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from keras_preempt.cli.drill.strikes import Lost, strikes

STARTED, TRAINING = os.getpid(), 200  # The first one lives.


def tell(path: str, **what: object) -> None:
    with Path(path).open("w") as pipe:
        pipe.write(json.dumps({"pid": TRAINING, **what}) + "\n")


def strike(path: str, name: str, **what: object) -> None:
    tell(path, **{"signal": name, "time": time.time(), **what})


def test_a_worker_is_killed_when_its_grace_is_over_unless_it_is_gone() -> None:
    said: list[str] = []
    for still_there in (True, False):
        asked = threading.Event()

        def send(member: int, number: int, asked: threading.Event = asked, there: bool = still_there) -> int:
            assert number == signal.SIGKILL
            asked.set()
            return STARTED if there else 0

        with strikes(0.01, said.append) as listening:
            listening.expect(3, 1, send)
            strike(listening.path, "SIGTERM")
            assert asked.wait(60)
        assert listening.killed == ({3: 1} if still_there else {})
    assert [line for line in said if "gets" in line] == ["w1 gets SIGTERM now, by its own hand"] * 2
    assert [line for line in said if "its 0.01 s of grace were over: killed" in line]


def test_a_grace_period_does_not_follow_a_wall_clock_that_is_set_back() -> None:
    asked = threading.Event()

    def send(member: int, number: int) -> int:
        asked.set()
        return STARTED

    with strikes(0.01, lambda line: None) as listening:
        listening.expect(0, 0, send)
        strike(listening.path, "SIGTERM", time=time.time() + 3600)
        assert asked.wait(20)


@pytest.mark.parametrize("struck_too", [True, False])
def test_the_next_incarnation_does_not_die_of_the_grace_of_the_last_one(struck_too: bool) -> None:
    asked: list[int] = []

    def send(member: int, number: int) -> int:
        asked.append(member)
        return 0

    with strikes(600.0, lambda line: None) as listening:
        listening.expect(0, 0, send)
        strike(listening.path, "SIGTERM")
        listening.settle()
        assert listening.struck == {0}
        if struck_too:
            listening.expect(1, 1, send)
        else:
            listening.expect_none()
        for timer in [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]:
            timer.join(60)
            assert not timer.is_alive()
    assert asked == []


def test_lines_that_are_no_report_are_skipped_and_a_kill_needs_no_grace() -> None:
    said: list[str] = []
    with strikes(0.01, said.append) as listening:
        listening.expect(0, 0, lambda member, number: STARTED)
        with Path(listening.path).open("w") as pipe:
            pipe.write("nonsense\n[]\n{}\n")
        strike(listening.path, "SIGKILL")
        listening.settle()
    assert said == ["w0 gets SIGKILL now, by its own hand"]
    assert not Path(listening.path).exists()


def test_a_signal_that_a_worker_waits_for_is_sent_and_counts_as_lost_until_it_has_arrived() -> None:
    sent: list[tuple[int, int]] = []

    def send(member: int, number: int) -> int:
        sent.append((member, number))
        return STARTED

    with strikes(None, lambda line: None) as listening:
        listening.expect(2, 1, send)
        strike(listening.path, "SIGTERM", wanted=True)
        listening.settle()
        assert sent == [(1, signal.SIGTERM)]
        assert listening.lost == {2: Lost(1, "SIGTERM", STARTED, TRAINING)}
        tell(listening.path, arrived="SIGTERM")
        listening.settle()
        assert listening.lost == {}
        listening.expect(3, 0, send)
        strike(listening.path, "SIGKILL", wanted=True)
        listening.settle()
    assert sent[1:] == [(0, signal.SIGKILL)]
    assert listening.lost == {}, "nobody can say that SIGKILL has arrived"


def test_a_signal_that_ends_the_wrapper_is_lost_although_it_arrives() -> None:
    """As in `sh -c 'python train.py; true'`: only the launcher of the drill hands it on to the orphan."""
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        pass
    with strikes(None, lambda line: None) as listening:
        listening.expect(0, 0, lambda member, number: ended.pid)
        strike(listening.path, "SIGTERM", wanted=True)
        tell(listening.path, arrived="SIGTERM")
        listening.settle()
    assert listening.lost == {0: Lost(0, "SIGTERM", ended.pid, TRAINING)}


def test_a_worker_that_has_not_heard_its_signal_is_ended() -> None:
    sent: list[int] = []

    def send(member: int, number: int) -> int:
        sent.append(number)
        return STARTED

    with strikes(None, lambda line: None) as listening:
        listening.expect(0, 0, send)
        strike(listening.path, "SIGTERM", wanted=True)
        tell(listening.path, lost="SIGTERM")
        listening.settle()
    assert sent == [signal.SIGTERM, signal.SIGKILL]
    assert listening.lost == {0: Lost(0, "SIGTERM", STARTED, TRAINING)}
