from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from keras_preempt.cli.strikes import strikes


def tell(path: str, signal: str) -> None:
    with Path(path).open("w") as pipe:
        pipe.write(json.dumps({"signal": signal, "time": time.time()}) + "\n")


def test_a_worker_is_killed_when_its_grace_is_over_unless_it_is_gone() -> None:
    said: list[str] = []
    for still_there in (True, False):
        asked = threading.Event()

        def kill(member: int, asked: threading.Event = asked, still_there: bool = still_there) -> bool:
            asked.set()
            return still_there

        with strikes(0.01, said.append) as listening:
            listening.expect(3, 1, kill)
            tell(listening.path, "SIGTERM")
            assert asked.wait(60)
        assert listening.killed == ({3: 1} if still_there else {})
    assert [line for line in said if "w1 gets SIGTERM now" in line] == ["w1 gets SIGTERM now"] * 2
    assert [line for line in said if "its 0.01 s of grace were over: killed" in line]


@pytest.mark.parametrize("struck_too", [True, False])
def test_the_next_incarnation_does_not_die_of_the_grace_of_the_last_one(struck_too: bool) -> None:
    asked: list[int] = []
    heard = threading.Event()

    def say(line: str) -> None:
        heard.set()

    with strikes(600.0, say) as listening:
        listening.expect(0, 0, lambda member: bool(asked.append(member)))
        tell(listening.path, "SIGTERM")
        assert heard.wait(60)
        if struck_too:
            listening.expect(1, 1, lambda member: bool(asked.append(member)))
        else:
            listening.expect_none()
        for timer in [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]:
            timer.join(60)
            assert not timer.is_alive()
    assert asked == []


def test_what_is_no_strike_is_passed_over_and_a_kill_needs_no_grace() -> None:
    heard, said = threading.Event(), []

    def say(line: str) -> None:
        said.append(line)
        heard.set()

    with strikes(0.01, say) as listening:
        listening.expect(0, 0, lambda member: True)
        with Path(listening.path).open("w") as pipe:
            pipe.write("nonsense\n[]\n{}\n")
        tell(listening.path, "SIGKILL")
        assert heard.wait(60)
    assert said == ["w0 gets SIGKILL now"]
    assert not Path(listening.path).exists()
