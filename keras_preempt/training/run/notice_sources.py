"""The sources of notices of one fit or loop, from its beginning to its end."""

from __future__ import annotations

import contextlib
import functools
import logging
import signal

from keras_preempt.agreement.coordinator import CoordinationLost, Coordinator
from keras_preempt.backend.hung_on_loss import HungOnLoss
from keras_preempt.backend.place import Place
from keras_preempt.backend.seam import backend
from keras_preempt.notices import Notice, Source
from keras_preempt.notices.coordination_key import CoordinationKeyNotices, announcement, task_named_by
from keras_preempt.notices.detection import KnownOnce
from keras_preempt.notices.interrupt import Interrupts
from keras_preempt.notices.platform import CLOUDS
from keras_preempt.notices.polling import EarlyNotices, PolledNotices, notice_before_fit
from keras_preempt.notices.signals import SignalNotices
from keras_preempt.notices.termination import Termination, TerminationConfig
from keras_preempt.notices.time_limit import TimeLimitNotices
from keras_preempt.report.status import CLOUD_FILE, leave_file, listens
from keras_preempt.training.run import several_fits
from keras_preempt.training.run.runtime import Runtime

logger = logging.getLogger("keras_preempt")


class NoticeSources:
    """The sources of notices of one training. Those that need no network are listened to from now on.

    `runtime` takes the notices, `coordinator` is where TensorFlow leaves its own, and `config` is what the user says
    about notices. Raises ValueError if an environment variable that names the platform, or a metadata server, is wrong.
    """

    def __init__(
        self, runtime: Runtime, coordinator: Coordinator, place: Place, config: TerminationConfig
    ) -> None:
        self._runtime = runtime
        self._place = place
        self._config = config
        self._sources: list[Source] = []
        self._signals: SignalNotices | None = None
        self._replaced = False  # Whether other code has replaced the signal handlers.
        self._detection = KnownOnce()  # Detects the platform while the state is restored.
        if place.workers:
            runtime.announcement = functools.partial(announcement, len(place.workers))
        signals = config.signals
        clustered = place.members > 1 or bool(place.workers)
        if SignalNotices.possible():
            interrupts = None
            # As Python does by itself.
            raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            if config.save_on_interrupt and signal.SIGINT not in signals and raises:
                interrupts = Interrupts(runtime.expect, runtime.interrupt, lambda: runtime.started)
            self._signals = SignalNotices(
                signals, runtime.notify, runtime.expect, self._signals_replaced, interrupts
            )
            self._start(self._signals)
            if signals:
                listens(place.member)
        elif signals and (not clustered or not backend().hears_by_key):
            logger.warning(
                "fit runs outside the main thread of its process, where Python cannot hear signals: a "
                "termination signal will NOT be heard. Call fit from the main thread."
            )
        if (since := backend().early_notice()) is not None:
            runtime.notify(notice_before_fit(since))
        elif not backend().hears_by_key:
            self._start(EarlyNotices(backend().early_notice, runtime.notify))
        if clustered and backend().hears_by_key:
            # In addition to the signals: one that came before this fit went to the runtime's own handler, which sets
            # the key up to a second later.
            keys, on_lost = coordinator, None  # Those under which TensorFlow leaves its notices.
            if place.workers:
                try:
                    keys = backend().notice_keys()
                except CoordinationLost:
                    logger.warning(
                        "The remote workers have no coordination service: notices of their preemption will NOT be "
                        "heard. Connect to them with a TPUClusterResolver."
                    )
                else:
                    hung = HungOnLoss()
                    self._start(hung)
                    on_lost = hung.begin
            self._start(CoordinationKeyNotices(keys, self._about_a_task, on_lost))

    def start_platform(self) -> Termination:
        """Also listens to the sources of the platform and to the user's function.

        Returns the user's configuration, completed by what is known of the platform. Raises ValueError if an
        environment variable that names a metadata server is wrong.
        """
        platform = self._detection.result()
        if (answer := self._detection.answer) is not None:
            leave_file(CLOUD_FILE, {"answer": answer})
        if self._place.workers:
            platform = platform.for_tpu_coordinator()
        elif self._place.members == 1 or not backend().hears_by_key:
            platform = platform.without_coordination_key()
        termination = Termination(self._config, platform)
        notify, withdraw = self._runtime.notify, self._runtime.withdraw
        lead = termination.platform.maintenance_lead
        for name in termination.sources:
            if name in CLOUDS:
                for source in CLOUDS[name].sources(notify, withdraw, lead):
                    self._start(source)
        if termination.termination_watcher_fn is not None:
            self._start(PolledNotices(termination.termination_watcher_fn, notify))
        if self._place.member == 0 and several_fits.is_news(termination.describe()):
            logger.info("%s", termination.describe())
        if termination.end is not None:
            limit = TimeLimitNotices(termination.end, self._runtime.reserve, notify)
            self._runtime.before_answers(limit.called)
            self._start(limit)
        return termination

    def restore_handlers(self) -> None:
        """Takes the signal handlers back if other code has replaced them. To be called at boundaries."""
        if self._replaced and self._signals is not None:
            self._replaced = False
            self._signals.look_again()
            self._runtime.update_attention()

    def leave_with(self, termination: Termination, status: int) -> None:
        """Keeps a further signal from replacing the exit status of this process, unless `exit_fn` ends it."""
        if self._signals is not None and termination.exit_fn is None:
            self._signals.leave_with(status)

    def stop(self) -> None:
        """Can be called twice."""
        with contextlib.ExitStack() as stopping:
            stopping.callback(self._detection.stop)
            for source in self._sources:
                stopping.callback(source.stop)

    def _start(self, source: Source) -> None:
        self._sources.append(source)
        source.start()

    def _signals_replaced(self) -> None:
        self._replaced = True
        self._runtime.attention = True

    def _about_a_task(self, notice: Notice) -> None:
        if self._place.workers or task_named_by(notice) == self._place.task:
            self._runtime.notify(notice)
