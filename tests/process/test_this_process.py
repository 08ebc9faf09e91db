from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from keras_preempt.process import this_process

_TELL = (
    "import json; from keras_preempt.process import this_process as p; "
    "print(json.dumps([p.started_at(), p.name()]))"
)
_WAIT = f"{_TELL}; import sys; sys.stdout.flush(); sys.stdin.read()"


def test_a_process_knows_when_it_was_started() -> None:
    before = time.time()
    told = subprocess.run(
        [sys.executable, "-c", _TELL], capture_output=True, text=True, check=True, timeout=60
    )
    started, _ = json.loads(told.stdout)
    tick = 2 / os.sysconf("SC_CLK_TCK")
    assert before - tick <= started <= time.time()
    assert this_process.started_at() == pytest.approx(this_process.started_at(), abs=tick)
    assert this_process.started_at() < before


def test_a_process_is_alive_until_it_has_ended_and_another_of_its_number_is_not_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        _, name = json.loads(child.stdout.readline())
        assert this_process.is_alive(name) is True
        assert this_process.is_alive({**name, "ticks": name["ticks"] - 1}) is False
        child.communicate(timeout=60)
    assert this_process.is_alive(name) is False


@pytest.mark.parametrize(
    "told",
    [
        *(None, "w0", {}),
        *({"machine": "elsewhere", "pid": 1, "ticks": 1}, {"machine": "", "pid": True, "ticks": 1}),
        *({"machine": this_process.machine(), "pid": pid, "ticks": 1} for pid in (-1, 0, 1 << 70, "1", 1.0)),
    ],
)
def test_nothing_is_known_of_a_process_elsewhere_or_a_name_that_is_none(told: object) -> None:
    assert this_process.is_alive(told) is None
