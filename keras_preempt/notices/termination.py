"""What the user says about termination, what the platform adds to that, and how a preempted fit ends."""

from __future__ import annotations

import datetime
import inspect
import math
import os
import signal
from collections.abc import Callable, Iterable
from numbers import Integral, Real

from keras_preempt.checkpoint.retention import seconds_of
from keras_preempt.notices.platform import CLOUDS, POLLED, SIGNALS, Platform
from keras_preempt.notices.signals import parse_signals
from keras_preempt.notices.time_limit import find_end
from keras_preempt.process import environment
from keras_preempt.process.exit_codes import EXIT_NOT_SAVED


class Preempted(RuntimeError):
    """Raised out of `fit` when the checkpoint is committed and `exit_fn` has returned."""


class TerminationConfig:
    """How notices reach the job, and how it ends once its checkpoint is safe.

    What is left out is filled in by platform; docs/termination.md has the table.

    Args:
        termination_watcher_fn: Called without arguments, again and again, in a thread of its own; returns True
            when a notice is there. It must not block. It replaces the platform's own metadata sources; signals are
            still heard. Without `grace_period` its notice means: save and exit at once.
        exit_fn: Called without arguments, in the main thread, after the checkpoint is committed and everything
            that was started for it has ended, instead of raising SystemExit(exit_code). If it returns, `Preempted`
            is raised out of `fit`.
        grace_period: Seconds from a notice to the end of the process. Training continues in that time if there is
            enough of it: a first checkpoint at the notice, a last one right before the end. A notice with an earlier
            deadline of its own is believed. 0: save and exit at once, even where a notice leaves time.
            None: until the notice's own deadline; save and exit at once if it has none.
        save_fn: Called after every checkpoint that answers a notice; not after those of `save_every`.
            `PreemptionCallback` calls it without arguments, on every worker at the same step, in the main
            thread, once its own checkpoint is committed or has failed (the resume needs that one, so this only
            adds to it) and before anything is shut down, so that it may save a model under any strategy. It has
            what is left of the grace period. An error in it is logged and changes neither the checkpoint nor the
            exit. `PreemptionCheckpointHandler` calls it as TensorFlow does: instead of saving the checkpoint, with
            the arguments of `save_checkpoint_if_preempted`.
        signals: Signals that announce the end of this process, as names or numbers; () for none.
        exit_code: The exit status after a preemption, 1 to 255 but not 74, which says that nothing was saved.
        save_on_interrupt: Whether Ctrl-C saves, on all workers at the same step, before KeyboardInterrupt leaves `fit`;
            a second one leaves at once. Only where Ctrl-C would raise KeyboardInterrupt anyway: not if the program
            handles or ignores SIGINT, nor if it is one of `signals`. See docs/termination.md.
        time_limit: How long this process may run, from its start: a time such as "11h50m" or a `datetime.timedelta`.
            It saves and leaves before that, and before the end of the allocation, if the platform says when that is.
            "auto": before that end alone. None: before neither. See "Time limits" in docs/termination.md.

    Attributes:
        termination_watcher_fn: As given; None if left open. So are `exit_fn`, `grace_period`, `save_fn` and
            `exit_code`.
        signals: The signals.
        save_on_interrupt: As given. So is `time_limit`.

    Raises:
        ValueError: An argument is not as described above.

    Example:
        >>> TerminationConfig(grace_period=25, signals=("SIGTERM", "SIGUSR1")).signals
        (<Signals.SIGTERM: 15>, <Signals.SIGUSR1: 10>)
    """

    def __init__(
        self,
        termination_watcher_fn: Callable[[], bool] | None = None,
        exit_fn: Callable[[], object] | None = None,
        grace_period: float | None = None,
        save_fn: Callable[..., object] | None = None,
        *,
        signals: Iterable[str | int | signal.Signals] = ("SIGTERM",),
        exit_code: int | None = None,
        save_on_interrupt: bool = True,
        time_limit: str | datetime.timedelta | None = "auto",
    ) -> None:
        check_no_arguments("termination_watcher_fn", termination_watcher_fn)
        check_no_arguments("exit_fn", exit_fn)
        if save_fn is not None and not callable(save_fn):
            raise ValueError(f"Expected save_fn to be a function, or None. Received: {save_fn!r}.")
        self.termination_watcher_fn = termination_watcher_fn
        self.exit_fn = exit_fn
        if grace_period is not None and not _is_a_grace_period(grace_period):
            raise ValueError(
                "Expected grace_period to be a number of seconds, finite and not negative, or None to go by what "
                f"each notice says. Received: {grace_period!r}."
            )
        self.grace_period = None if grace_period is None else float(grace_period)
        self.save_fn = save_fn
        try:
            names = signals if isinstance(signals, str) else tuple(signals)
        except TypeError:
            raise ValueError(
                f"Expected signals to be names of signals, such as ('SIGTERM', 'SIGUSR1'). Received: {signals!r}."
            ) from None
        self.signals = parse_signals(names)
        is_number = isinstance(exit_code, (int, Integral)) and not isinstance(exit_code, bool)
        if exit_code is not None and not (is_number and 1 <= exit_code <= 255):
            raise ValueError(
                "Expected exit_code to be an integer from 1 to 255, since 0 says that training finished. "
                f"Received: {exit_code!r}."
            )
        if exit_code == EXIT_NOT_SAVED:
            raise ValueError(
                f"Expected exit_code to be another one than {EXIT_NOT_SAVED}, with which a process says that its "
                f"checkpoint could not be saved. Received: {exit_code!r}. Leave it out for the platform's own."
            )
        self.exit_code = None if exit_code is None else int(exit_code)
        if not isinstance(save_on_interrupt, bool):
            raise ValueError(
                f"Expected save_on_interrupt to be True or False. Received: {save_on_interrupt!r}."
            )
        self.save_on_interrupt = save_on_interrupt
        if not (time_limit is None or _is_auto(time_limit) or seconds_of(time_limit) is not None):
            raise ValueError(
                "Expected time_limit to be a time such as '11h50m', '90min' or a timedelta, 'auto' for what the "
                f"platform says, or None. Received: {time_limit!r}."
            )
        self.time_limit = time_limit

    def __repr__(self) -> str:
        """Returns the call that makes one like this, without what is left open."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        given["signals"] = tuple(number.name for number in self.signals)
        if self.signals == (signal.SIGTERM,):
            del given["signals"]
        if self.save_on_interrupt:
            del given["save_on_interrupt"]
        given["time_limit"] = self.time_limit
        if _is_auto(self.time_limit):
            del given["time_limit"]
        return f"TerminationConfig({', '.join(f'{name}={value!r}' for name, value in given.items())})"


class Termination:
    """A `TerminationConfig` and what the platform fills in; the environment overrides both.

    `sources` are the names of the sources of notices to start; `grace_period` is None to go by what each notice says.
    Raises ValueError if the environment's grace period is not a number of seconds.
    """

    def __init__(self, config: TerminationConfig, platform: Platform) -> None:
        self.platform = platform
        self.signals = config.signals
        self.termination_watcher_fn = config.termination_watcher_fn
        self.exit_fn = config.exit_fn
        self.save_fn = config.save_fn
        self.exit_code = platform.exit_code if config.exit_code is None else config.exit_code
        # Whether to exit only once the workers that this process coordinates are gone. An exit_fn decides for itself.
        self.waits_for_workers = platform.waits_for_workers and config.exit_fn is None
        self.sources = platform.sources
        if config.termination_watcher_fn is not None:
            self.sources = (*(name for name in self.sources if name not in CLOUDS), POLLED)
        if not config.signals:
            self.sources = tuple(name for name in self.sources if name != SIGNALS)
        self.grace_period = config.grace_period
        if text := os.environ.get(environment.GRACE_PERIOD):
            try:
                self.grace_period = float(text)
            except ValueError:
                self.grace_period = math.nan
            if not _is_a_grace_period(self.grace_period):
                raise ValueError(
                    f"Expected {environment.GRACE_PERIOD} to be a number of seconds, finite and not negative. "
                    f"Received: {text!r}. Correct it or unset it."
                )
        variable = "" if config.time_limit is None else platform.end_variable
        self.end = find_end(config.time_limit, variable)

    def describe(self) -> str:
        """One line for the log: where this is, how that was found, and what follows."""
        names = "/".join(number.name for number in self.signals)
        heard = ", ".join(names if source == SIGNALS else source for source in self.sources)
        if self.grace_period is not None:
            grace = f"{self.grace_period:g} s of grace"
        elif CLOUDS.keys().isdisjoint(self.sources):
            grace = "no grace period known, so it saves at once"
        elif lead := self.platform.maintenance_lead:
            grace = f"grace as a notice says, {lead:g} s for maintenance"
        else:
            grace = "grace as a notice says"
        leaves = "exit_fn" if self.exit_fn is not None else f"exit status {self.exit_code}"
        after = " once the workers are gone" if self.waits_for_workers else ""
        said = f"Platform: {self.platform.describe()}. Notices from {heard or 'nowhere'}; {grace}; {leaves}{after}."
        if self.end is not None:
            said += f" The time limit is over at {self.end}: it saves and leaves before that."
        return said


def check_no_arguments(name: str, function: object) -> None:
    """Raises ValueError unless `function` is None or does its work when called without arguments."""
    if function is None:
        return
    if not callable(function):
        raise ValueError(f"Expected {name} to be a function without arguments. Received: {function!r}.")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ValueError(
            f"Expected {name} to be a plain function. Received: {function!r}; a call of it only makes a coroutine "
            "or generator, and runs nothing."
        )
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return  # A function in C that does not say what it takes.
    try:
        signature.bind()
    except TypeError as error:
        raise ValueError(
            f"Expected {name} to be a function without arguments. Received: {function!r}, called without any: "
            f"{error}."
        ) from None


def _is_auto(time_limit: object) -> bool:
    return isinstance(time_limit, str) and time_limit == "auto"


def _is_a_grace_period(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return math.isfinite(value) and float(value) >= 0
