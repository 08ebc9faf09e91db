from __future__ import annotations

import functools
import math
import signal
import sys
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from keras_preempt.notices.platform import GENERIC, POLLED, Platform, compose
from keras_preempt.notices.signals import parse_signals
from keras_preempt.notices.termination import (
    Termination,
    TerminationConfig,
)
from keras_preempt.process import environment
from keras_preempt.process.exit_codes import EXIT_NOT_SAVED, EXIT_RESTART, EXIT_RESTART_GCE, EXIT_RESTART_TPU

GCE_GPU = compose(None, "gce", "gpu", ("the firmware says so",))


# -- What the user says ----------------------------------------------------------------------------------


def test_what_is_left_out_stays_open() -> None:
    config = TerminationConfig()
    assert config.signals == (signal.SIGTERM,)
    for name in ("exit_code", "exit_fn", "grace_period", "save_fn", "termination_watcher_fn"):
        assert getattr(config, name) is None
    assert config.save_on_interrupt
    assert not TerminationConfig(save_on_interrupt=False).save_on_interrupt


def test_arguments_come_in_the_order_of_tensorflow() -> None:
    def watcher() -> bool:
        return False

    def leave() -> None: ...

    def save(*args: object, **kwargs: object) -> None: ...

    config = TerminationConfig(watcher, leave, 30, save)
    assert config.termination_watcher_fn is watcher
    assert config.exit_fn is leave
    assert config.grace_period == 30
    assert config.save_fn is save


@pytest.mark.parametrize("seconds", [0, 0.5, 3600, np.float32(30), np.int64(30)])
def test_a_grace_period_is_any_number_of_seconds(seconds: Any) -> None:
    period = TerminationConfig(grace_period=seconds).grace_period
    assert type(period) is float
    assert period == seconds


class Policy:
    """Functions of every kind that a user may hand over."""

    def __call__(self) -> bool:
        return False

    def method(self) -> bool:
        return False

    def wants_more(self, directory: str) -> bool:
        return False

    async def coroutine(self) -> bool:
        return True

    def generator(self) -> Any:
        yield True


FUNCTIONS = ("termination_watcher_fn", "exit_fn")


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "function",
    [
        lambda: False,
        lambda *args, **kwargs: False,
        lambda code=1: False,
        Policy(),
        Policy().method,
        functools.partial(Policy().wants_more, "runs/1"),
        sys.exit,
        dict,
    ],
)
def test_a_function_that_needs_no_arguments_is_taken(name: str, function: Any) -> None:
    assert getattr(TerminationConfig(**{name: function}), name) is function


def test_save_fn_may_take_what_the_checkpoint_handler_is_given() -> None:
    assert TerminationConfig(save_fn=lambda step, *, options: None).save_fn is not None


WRONG: list[tuple[str, list[Any], str]] = [
    (
        "grace_period",
        [-1, -0.001, math.nan, math.inf, -math.inf, True, False, "30", "30s", [30], 1j, np.bool_(True)],
        r"Expected grace_period to be a number of seconds.* Received: ",
    ),
    *(
        (
            name,
            [75, "exit", True, lambda signal, frame: False, Policy().wants_more, lambda *, code: None],
            f"Expected {name} to be a function without arguments.*Received",
        )
        for name in FUNCTIONS
    ),
    # What these return is an object, which would be taken for True: a notice at once.
    *(
        (name, [Policy().coroutine, Policy().generator], f"Expected {name} to be a plain function")
        for name in FUNCTIONS
    ),
    ("save_fn", ["export"], r"Expected save_fn to be a function.*Received: 'export'"),
    ("save_on_interrupt", [0, "no", None], "Expected save_on_interrupt to be True or False"),
    (
        "time_limit",
        [
            0,
            42600,
            -1.0,
            True,
            "",
            "soon",
            "0s",
            "-1h",
            "11:50:00",
            "11h50",
            timedelta(0),
            timedelta(hours=-1),
        ],
        r"Expected time_limit to be a time such as '11h50m'.*Received: ",
    ),
    ("exit_code", [0, 256, -1, True, 1.5, "75", 75.0], "from 1 to 255"),
    ("exit_code", [EXIT_NOT_SAVED], "another one than 74"),
    (
        "signals",
        [[name] for name in ("SIGNOTHING", "", "SIG", 0, 4711, "15 ", None, 1.5)],
        "Expected names of signals",
    ),
    ("signals", [None, 15, signal.SIGTERM], "Expected signals to be names of signals"),
    ("signals", [["SIGKILL"], ["STOP"], [9]], "can catch"),
    ("signals", [["SIGTERM", "TERM"]], "SIGTERM twice"),
]


@pytest.mark.parametrize(
    ("name", "value", "match"), [(name, value, match) for name, values, match in WRONG for value in values]
)
def test_an_argument_that_makes_no_sense_is_refused(name: str, value: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        TerminationConfig(**{name: value})


@pytest.mark.parametrize("code", [1, 42, 143, 255, np.int64(42)])
def test_any_other_exit_code_is_taken(code: int) -> None:
    assert TerminationConfig(exit_code=code).exit_code == code


def test_exit_codes_are_those_that_others_know() -> None:
    assert (EXIT_NOT_SAVED, EXIT_RESTART, EXIT_RESTART_GCE, EXIT_RESTART_TPU) == (74, 75, 143, 42)
    assert EXIT_RESTART_GCE == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    "names",
    ["SIGUSR1", *([name] for name in ("SIGUSR1", "USR1", "usr1", signal.SIGUSR1, int(signal.SIGUSR1)))],
)
def test_a_signal_can_be_named_in_every_usual_way_and_one_name_is_no_list_of_letters(names: Any) -> None:
    assert parse_signals(names) == (signal.SIGUSR1,)


# -- What the platform adds ------------------------------------------------------------------------------


def completed(platform: Platform = GENERIC, **arguments: Any) -> Termination:
    return Termination(TerminationConfig(**arguments), platform)


@pytest.mark.parametrize(
    ("platform", "code"),
    [
        (GENERIC, 75),
        (compose(None, "gce", "none"), 143),
        (GCE_GPU, 143),
        (compose(None, "gce", "tpu"), 42),
        (compose("kubernetes", "gce", "gpu"), 75),
        (compose("slurm", None, "none"), 75),
        (compose(None, "aws", "gpu"), 75),
        (GENERIC.for_tpu_coordinator(), 42),
    ],
)
def test_the_exit_code_is_the_platforms_unless_the_user_gives_one(platform: Any, code: int) -> None:
    assert completed(platform).exit_code == code
    assert completed(platform, exit_code=7).exit_code == 7


def test_a_grace_period_is_never_made_up() -> None:
    # An hour holds for maintenance of a machine with GPUs, not for a signal that reaches it: that notice says so
    # itself, and the grace period of all notices is the user's.
    assert completed(GCE_GPU).grace_period is None
    assert completed(GCE_GPU).platform.maintenance_lead == 3600
    assert completed(GCE_GPU, grace_period=0).grace_period == 0


def test_the_users_watcher_takes_the_place_of_metadata_and_leaves_signals_unless_there_are_none() -> None:
    assert completed(GCE_GPU).sources == ("signals", "gce", "coordination key")
    watched = completed(GCE_GPU, termination_watcher_fn=lambda: False)
    assert watched.sources == ("signals", "coordination key", POLLED)
    assert "no grace period known" in watched.describe()
    without = completed(GCE_GPU, signals=())
    assert without.sources == ("gce", "coordination key")
    assert without.signals == ()


def test_an_exit_fn_decides_itself_whether_to_wait_for_the_workers() -> None:
    coordinator = GENERIC.for_tpu_coordinator()
    assert completed(coordinator).waits_for_workers
    assert completed(coordinator, exit_code=3).waits_for_workers
    assert not completed(coordinator, exit_fn=lambda: None).waits_for_workers


def test_one_line_says_what_was_found_and_what_follows() -> None:
    assert completed(GCE_GPU).describe() == (
        "Platform: gce-gpu (the firmware says so). Notices from SIGTERM, gce, coordination key; grace as a notice "
        "says, 3600 s for maintenance; exit status 143."
    )
    assert completed(signals=("SIGTERM", "USR1"), grace_period=30, exit_code=9).describe() == (
        "Platform: generic. Notices from SIGTERM/SIGUSR1, coordination key; 30 s of grace; exit status 9."
    )
    assert "; no grace period known, so it saves at once; " in completed().describe()
    assert "; grace as a notice says; " in completed(compose(None, "aws", None)).describe()
    assert "exit_fn." in completed(exit_fn=lambda: None).describe()
    assert "exit status 42 once the workers are gone." in completed(GENERIC.for_tpu_coordinator()).describe()
    assert "\n" not in completed(compose("slurm", "azure", "gpu", ("one", "two"))).describe()


def test_the_environment_replaces_the_grace_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.GRACE_PERIOD, "12.5")
    assert completed(grace_period=3).grace_period == 12.5
    assert completed().grace_period == 12.5
    expected = f"Expected {environment.GRACE_PERIOD} to be a number of seconds"
    for wrong in ("soon", "-1", "inf"):
        monkeypatch.setenv(environment.GRACE_PERIOD, wrong)
        with pytest.raises(ValueError, match=expected):
            completed()
