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

from keras_preempt.cli.drill.signaller import LostSignal, signaller

STARTED, TRAINING = os.getpid(), 200  # The first one lives.


class Send:
    """Stands in for the launcher: notes which signals it is to send, each with the worker; says to which process."""

    def __init__(self, pid: int = STARTED) -> None:
        self.sent: list[tuple[int, int]] = []
        self.asked = threading.Event()
        self.pid = pid

    def __call__(self, member: int, number: int) -> int:
        self.sent.append((member, number))
        self.asked.set()
        return self.pid


def tell(path: str, **what: object) -> None:
    with Path(path).open("w") as pipe:
        pipe.write(json.dumps({"pid": TRAINING, **what}) + "\n")


def strike(path: str, name: str, **what: object) -> None:
    tell(path, **{"signal": name, "time": time.time(), **what})


def nothing(line: str) -> None:
    """Nobody looks at what is said."""


def test_a_worker_is_killed_when_its_grace_is_over_unless_it_is_gone() -> None:
    said: list[str] = []
    for send in (Send(), Send(pid=0)):
        with signaller(0.01, said.append) as listening:
            listening.expect((3, 1, send))
            strike(listening.path, "SIGTERM")
            assert send.asked.wait(60)
        assert send.sent == [(1, signal.SIGKILL)]
        assert listening.killed == ({3: 1} if send.pid else {})
    assert [line for line in said if "gets" in line] == [
        "w1 gets SIGTERM now, sent by the worker to itself"
    ] * 2
    assert [line for line in said if "its 0.01 s of grace were over: killed" in line]


def test_a_grace_period_does_not_follow_a_wall_clock_that_is_set_back() -> None:
    send = Send()
    with signaller(0.01, nothing) as listening:
        listening.expect((0, 0, send))
        strike(listening.path, "SIGTERM", time=time.time() + 3600)
        assert send.asked.wait(20)


@pytest.mark.parametrize("struck_too", [True, False])
def test_the_next_incarnation_does_not_die_of_the_grace_of_the_last_one(struck_too: bool) -> None:
    send = Send(pid=0)
    with signaller(600.0, nothing) as listening:
        listening.expect((0, 0, send))
        strike(listening.path, "SIGTERM")
        listening.settle()
        assert listening.signalled == {0}
        if struck_too:
            listening.expect((1, 1, send))
        else:
            listening.expect(None)
        for timer in [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]:
            timer.join(60)
            assert not timer.is_alive()
    assert send.sent == []


def test_lines_that_are_no_report_are_skipped_and_a_kill_needs_no_grace() -> None:
    said: list[str] = []
    with signaller(0.01, said.append) as listening:
        listening.expect((0, 0, Send()))
        with Path(listening.path).open("w") as pipe:
            pipe.write("nonsense\n[]\n{}\n")
        strike(listening.path, "SIGKILL")
        listening.settle()
    assert said == ["w0 gets SIGKILL now, sent by the worker to itself"]
    assert not Path(listening.path).exists()


def test_a_signal_that_a_worker_waits_for_is_sent_and_counts_as_lost_until_it_has_arrived() -> None:
    send = Send()
    with signaller(None, nothing) as listening:
        listening.expect((2, 1, send))
        strike(listening.path, "SIGTERM", wanted=True)
        listening.settle()
        assert send.sent == [(1, signal.SIGTERM)]
        assert listening.lost == {2: LostSignal(1, "SIGTERM", STARTED, TRAINING)}
        tell(listening.path, arrived="SIGTERM")
        listening.settle()
        assert listening.lost == {}
        listening.expect((3, 0, send))
        strike(listening.path, "SIGKILL", wanted=True)
        listening.settle()
    assert send.sent[1:] == [(0, signal.SIGKILL)]
    assert listening.lost == {}, "nobody can say that SIGKILL has arrived"


@pytest.mark.parametrize("how", ["arrived", "lost"])
def test_a_signal_that_was_not_heard_is_lost(how: str) -> None:
    """It arrives, and ends the wrapper in `sh -c 'python train.py; true'`, or the worker says that it has not come.

    Only the launcher of the drill hands it on to the orphan of a wrapper. A worker that has not heard it is ended.
    """
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        pass
    send = Send(ended.pid if how == "arrived" else STARTED)
    with signaller(None, nothing) as listening:
        listening.expect((0, 0, send))
        strike(listening.path, "SIGTERM", wanted=True)
        tell(listening.path, **{how: "SIGTERM"})
        listening.settle()
    killed = [] if how == "arrived" else [(0, signal.SIGKILL)]
    assert send.sent == [(0, signal.SIGTERM), *killed]
    assert listening.lost == {0: LostSignal(0, "SIGTERM", send.pid, TRAINING)}
