"""This process as one of those that train together: it gets notices, joins rounds, reports errors, and leaves.

A fit and a custom loop are each built around a `Participant`. What only one of them does is in `fit` and `loop`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from keras_preempt.agreement.coordinator import Coordinator
from keras_preempt.agreement.messages import Kind, Plan, Position
from keras_preempt.backend.place import Place
from keras_preempt.notices.platform import GENERIC
from keras_preempt.notices.termination import Termination, TerminationConfig
from keras_preempt.notices.time_limit import ends_job
from keras_preempt.process import heartbeat
from keras_preempt.process.exit_codes import EXIT_INTERRUPTED, EXIT_NOT_SAVED
from keras_preempt.process.heartbeat import Phase
from keras_preempt.report.delivery import Delivery, OnEvent
from keras_preempt.report.events import EventLog
from keras_preempt.report.status import Status, Steps
from keras_preempt.training.leave import leaving
from keras_preempt.training.leave.propagation import Propagation, gist
from keras_preempt.training.run.notice_sources import NoticeSources
from keras_preempt.training.run.runtime import Runtime


class Hook:
    """A second look at every boundary: does nothing. A drill passes one of its own; see `keras_preempt.drilled`.

    Attributes:
        every_boundary: Whether to be called at every boundary, whatever happens.
    """

    every_boundary = False

    def boundary(self, position: Position, logs: Mapping[str, Any] | None = None) -> None:
        """Training stands at a boundary, after an execution with these logs; this may not return."""

    def finish(self, position: Position, logs: Mapping[str, Any] | None) -> None:
        """Training is over."""

    def state_was_missed(self, callbacks: Sequence[str]) -> None:
        """An error leaves the fit, raised in callbacks whose state was not kept."""

    def close(self) -> None:
        """The fit is left."""


class Ending:
    """Ends what a training has started: the last thing first, each of them, and once.

    Attributes:
        why: Why the training has ended, in words; empty until then.
    """

    def __init__(self) -> None:
        self.why = ""
        self._over = False
        self._owner = os.getpid()
        self._stack = contextlib.ExitStack()

    @property
    def over(self) -> bool:
        """Whether nothing is left to end: it has ended, or belongs to the process of which this one is a fork."""
        return self._over or os.getpid() != self._owner

    def add(self, end: Callable[[], object]) -> None:
        """Registers what ends before everything that was added until now."""
        self._stack.callback(end)

    def end(self, why: str) -> None:
        """Ends everything. Can be called twice."""
        if not self.over:
            self._over, self.why = True, why
            self._stack.close()

    @contextlib.contextmanager
    def on_error(self) -> Iterator[None]:
        """Ends everything if an error leaves the block, in which the training begins."""
        try:
            yield
        except BaseException as error:
            self.end(f"{type(error).__name__} at the start: {error}")
            raise


class Participant:
    """One process in one training. Signals are listened to from now on.

    `number` tells this training from the others of this process, the same on every worker; `on_end_known` see
    `Runtime`; `on_event` is called with each event, in a thread.

    Attributes:
        status: What the launcher is told at the end.
        propagation: The errors that all workers are told of.
        heartbeat: What a launcher that watches for hangs can see.
        termination: `config`, completed by what is known of the platform.
        hook: What else looks at the boundaries.
        always_looks: Whether to look closer at every boundary, also without the hook.
        explain: Called once with the error that leaves the training, before anything is done about it.
    """

    def __init__(
        self,
        place: Place,
        coordinator: Coordinator,
        config: TerminationConfig,
        number: int,
        ending: Ending,
        on_end_known: Callable[[float | None], None] = lambda ends_at: None,
        on_event: OnEvent | None = None,
    ) -> None:
        leaving.stay()
        self.place = place
        self.coordinator = coordinator
        self.number = number
        self.ending = ending
        self.heartbeat = beat = heartbeat.of_process()
        beat.begin(place.members)
        ending.add(lambda: beat.enter(Phase.OUTSIDE))
        self.events = events = EventLog(place.member)
        ending.add(events.close)
        self.hook = Hook()
        self.always_looks = False
        self.explain: Callable[[BaseException], object] | None = None
        self.status = Status()
        self.termination = Termination(config, GENERIC)
        self.propagation = Propagation(coordinator, remote=place.workers)
        self.runtime = Runtime(coordinator, events, number, self.termination.grace_period, on_end_known)
        self.runtime.count = beat.count
        self.sources = NoticeSources(self.runtime, coordinator, place, config)
        if on_event is not None:
            delivery = Delivery(on_event)
            events.listener = delivery.put
            ending.add(lambda: delivery.stop(self.runtime.left))
        ending.add(self.sources.stop)
        ending.add(lambda: self.runtime.close(ending.why))

    def start(self) -> None:
        """Listens to the sources of the platform, and takes part in rounds from now on.

        In this order: a round serves those who know that their time limit is nearly over. Raises ValueError if an
        environment variable that names a metadata server is wrong.
        """
        self.termination = self.sources.start_platform()
        self.runtime.start()
        if (watch := self.propagation.watch()) is not None:
            watch.start()
            self.ending.add(watch.stop)

    def set_hook(self, hook: Hook) -> None:
        self.hook = hook
        if hook.every_boundary or self.always_looks:
            self.runtime.every_boundary = self.runtime.attention = True

    def look(self, position: Position, logs: Mapping[str, Any] | None = None) -> None:
        """Does what comes before a round, at a boundary that the main thread looks closer at."""
        self.sources.restore_handlers()
        if self.runtime.every_boundary:
            self.hook.boundary(position, logs)
            self.runtime.every_boundary = self.hook.every_boundary or self.always_looks

    def settle(self, error: BaseException) -> BaseException:
        """Tells the others of an error on its way out of the training; returns the one to raise in its place.

        See `Propagation.settle`.
        """
        explain, self.explain = self.explain, None
        if explain is not None:
            explain(error)
        if self.ending.over:  # Such as the exit after a preemption.
            return error
        raised = self.propagation.settle(error)
        origin = self.propagation.origin
        self.events.emit(
            "error", reason=_in_one_line(raised), origin=None if origin is None else origin.value
        )
        return raised

    def end_by(self, error: BaseException) -> BaseException:
        """Settles an error, and ends everything that was started; returns the error to raise."""
        raised = self.settle(error)
        self.ending.end(_in_one_line(raised))
        return raised

    @contextlib.contextmanager
    def settled(self, which: Callable[[BaseException], bool] = lambda error: True) -> Iterator[None]:
        """Settles each error that leaves the block and for which `which` is true, and ends everything."""
        try:
            yield
        except BaseException as error:
            raised = self.end_by(error) if which(error) else error
            if raised is not error:
                raise raised from error
            raise

    def leave(
        self, plan: Plan, *, saved: str | None, what: str, flush: Callable[[], None] = lambda: None
    ) -> NoReturn:
        """Tells how this process ends, leaves the other workers, ends what was started, and ends the process.

        `saved` is the name of what was saved, None for nothing; `what` the outcome and next step for a person; `flush`
        writes what others hold back. Raises KeyboardInterrupt if the user of a worker has interrupted it; else
        SystemExit, or Preempted if there is an exit_fn and it has returned.
        """
        interrupted = plan.kind is Kind.INTERRUPTED
        code = EXIT_NOT_SAVED if saved is None else self.termination.exit_code
        if interrupted:
            code = EXIT_INTERRUPTED
        with leaving.whatever_happens("Telling how this process ends"):
            self.events.emit("exit", code=code, saved=saved)
        with leaving.whatever_happens("A callback that writes what it holds back"):
            flush()
        self.status.saved, self.status.exit_code = saved is not None, code
        began = time.monotonic()
        with leaving.whatever_happens("Leaving the other workers"):
            self.runtime.leave()
        self.status.spent("exit", time.monotonic() - began)
        self.sources.leave_with(self.termination, code)
        with leaving.whatever_happens("Ending what was started for the training"):
            self.ending.end("interrupted" if interrupted else "preempted")
        with leaving.whatever_happens("Waiting for the workers"):
            leaving.wait_for_workers(self.termination, self.place, self.runtime.notices)
        limit = leaving.end_limit_of(self.place, self.runtime.left)
        if interrupted:
            leaving.interrupt(what, limit)
        leaving.end_process(self.termination, code, what, limit)

    def write_status(self, incarnation: int, last_saved: int, steps: Steps) -> None:
        """Leaves the status for the launcher.

        `incarnation` is 0 where starts are not counted, and `last_saved` the step of the last checkpoint, 0 for none.
        """
        self.status.notices = [notice.received_at for notice in self.runtime.notices]
        self.status.out_of_time = any(ends_job(notice) for notice in self.runtime.notices)
        self.status.spent("hold", self.runtime.hold_seconds)
        self.status.last_saved = last_saved
        self.status.write(self.place.member, incarnation, steps)


def _in_one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {gist(str(error))}"
