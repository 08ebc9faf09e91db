"""``keras-preempt run --time-limit``: the workers know the end, nothing is started after it, nothing runs beyond it."""

from __future__ import annotations

import time

import pytest

from keras_preempt.process import environment
from tests.cli.launched import Launched, called

OUT_OF_TIME = """
leave_file("worker-0.json", {"step": 7, "saved": True, "exit_code": 75, "finished": False, "out_of_time": True})
sys.exit(75)
"""


@pytest.mark.parametrize("wrong", ["soon", "0s", "-1h", "3600", "", "11h50"])
def test_a_limit_that_is_no_time_is_refused(wrong: str) -> None:
    done = called("run", "--time-limit", wrong, "--", "true")
    assert done.returncode == 2
    assert f"Expected a time such as 11h50m, 90min or 30s. Received: {wrong!r}." in done.stderr


def test_workers_know_when_the_job_that_began_with_the_command_ends(launched: Launched) -> None:
    body = f"print('end', os.environ[{environment.END_TIME!r}])"
    before = time.time()
    output = launched.ended(
        launched.run("python3", launched.script(body), options=["--time-limit", "1h1m"]), 0
    )
    (end,) = (float(line.split()[-1]) for line in output.splitlines() if line.startswith("[w0] end"))
    assert before + 3660 - 0.1 <= end <= time.time() + 3660


@pytest.mark.parametrize("outer", ["1700000000.5", "soon"])
def test_an_earlier_end_stays_and_what_makes_no_sense_is_left_to_the_workers(
    outer: str, launched: Launched
) -> None:
    body = f"print('end', os.environ[{environment.END_TIME!r}])"
    command = ("python3", launched.script(body))
    run = launched.run(*command, options=["--time-limit", "1h"], env={environment.END_TIME: outer})
    assert f"[w0] end {outer}" in launched.ended(run, 0)


@pytest.mark.parametrize("limit", [["--time-limit", "1h"], []])  # Without: the allocation of a scheduler.
def test_nothing_is_started_again_when_a_worker_says_that_there_is_no_time(
    limit: list[str], launched: Launched
) -> None:
    output = launched.ended(launched.run("python3", launched.script(OUT_OF_TIME), options=limit), 75)
    assert "out of time, saved at step 7: incarnations=1 preemptions=1 failures=0" in output


def test_a_worker_that_leaves_for_its_own_limit_is_started_again(launched: Launched) -> None:
    body = """
if os.environ["KERAS_PREEMPT_LAUNCHER_INCARNATION"] == "0":
    saved()
    sys.exit(75)
"""
    output = launched.ended(launched.run("python3", launched.script(body), options=["--time-limit", "1h"]), 0)
    assert "finished: incarnations=2 preemptions=1" in output


LIMIT = ["--time-limit", "3s"]


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("listen(); until_signal(); saved(); sys.exit(75)", 75, "out of time, saved at step 7"),
        ("listen(); until_signal(); saved(74); sys.exit(74)", 74, "out of time: "),
        ("listen(); until_signal(); until_signal()", 124, "out of time: "),
    ],
    ids=["saves late", "cannot save", "does not leave"],
)
def test_a_worker_that_runs_beyond_the_limit_is_ended(
    body: str, code: int, said: str, launched: Launched
) -> None:
    options = [*LIMIT, "--failure-grace", "1"]
    began = time.monotonic()
    output = launched.ended(launched.run("python3", launched.script(body), options=options), code)
    assert time.monotonic() - began >= 3, "before its time"
    assert output.count("the time limit is over, and there are workers that still run: ending them") == 1
    assert said in output
