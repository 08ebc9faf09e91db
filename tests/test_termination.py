from __future__ import annotations

import signal
from typing import Any

import pytest

from keras_preempt.notices.signals import parse_signals
from keras_preempt.termination import EXIT_NOT_SAVED, EXIT_RESTART, TerminationConfig


def test_without_arguments_sigterm_ends_the_job_with_status_75() -> None:
    config = TerminationConfig()
    assert config.signals == (signal.SIGTERM,)
    assert config.exit_code == EXIT_RESTART == 75
    assert config.exit_fn is None


def test_no_exit_status_is_mistaken_for_a_signal_or_for_success() -> None:
    assert 0 < EXIT_NOT_SAVED < 128
    assert 0 < EXIT_RESTART < 128
    assert EXIT_NOT_SAVED != EXIT_RESTART


def test_no_grace_period_is_save_and_exit_at_once() -> None:
    TerminationConfig(grace_period=0)
    TerminationConfig(grace_period=None)


@pytest.mark.parametrize(
    ("name", "value"),
    [("termination_watcher_fn", lambda: False), ("save_fn", lambda path: None), ("grace_period", 30)],
)
def test_an_argument_of_a_later_release_is_refused_by_name(name: str, value: Any) -> None:
    arguments: dict[str, Any] = {name: value}
    with pytest.raises(NotImplementedError, match=f"Expected {name}.*Received"):
        TerminationConfig(**arguments)


def test_exit_fn_must_be_callable() -> None:
    with pytest.raises(ValueError, match=r"exit_fn.*Received: 75"):
        TerminationConfig(exit_fn=75)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [0, 256, -1, True])
def test_an_exit_code_that_would_mean_something_else_is_refused(code: int) -> None:
    with pytest.raises(ValueError, match="from 1 to 255"):
        TerminationConfig(exit_code=code)


@pytest.mark.parametrize("code", [1, 42, 143, 255])
def test_any_other_exit_code_is_taken(code: int) -> None:
    assert TerminationConfig(exit_code=code).exit_code == code


@pytest.mark.parametrize("name", ["SIGUSR1", "USR1", "usr1", signal.SIGUSR1, int(signal.SIGUSR1)])
def test_a_signal_can_be_named_in_every_usual_way(name: Any) -> None:
    assert parse_signals([name]) == (signal.SIGUSR1,)


def test_one_name_alone_is_no_list_of_letters() -> None:
    assert parse_signals("SIGTERM") == (signal.SIGTERM,)


@pytest.mark.parametrize("name", ["SIGNOTHING", "", "SIG", 0, 4711, "15 "])
def test_an_unknown_signal_is_refused_by_name(name: Any) -> None:
    with pytest.raises(ValueError, match="Expected names of signals"):
        TerminationConfig(signals=[name])


@pytest.mark.parametrize("name", ["SIGKILL", "STOP", 9])
def test_a_signal_that_no_process_can_catch_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="can catch"):
        TerminationConfig(signals=[name])


def test_a_signal_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="SIGTERM twice"):
        TerminationConfig(signals=["SIGTERM", "TERM"])
