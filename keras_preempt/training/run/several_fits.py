"""Gives each fit of a script its own subdirectory.

Keras trains on with every call of `fit`: pretraining, then fine-tuning; one fold after the other. A script that is
started again makes the same calls in the same order, so a fit is known by its number. The first one has the
directory itself, the second one `fit-00002` in it, and so on. A fit that had ended is restored and trains nothing,
and the script comes to the one that was interrupted.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from keras_preempt.checkpoint.errors import IdentityMismatch, StoreUnavailable
from keras_preempt.checkpoint.layout import RUN
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.notices import Notice
from keras_preempt.process.words import size_in_words
from keras_preempt.state.callback_cure import cure

logger = logging.getLogger("keras_preempt")


@dataclass
class EndedFits:
    """The fits that had ended before this process began, of those that it has called since it last trained.

    None of them can tell whether it is the last: whether "raise epochs" is good advice, or a loop is about to make the
    next call. So they are counted. The next fit that trains says how many there were; if none does, the end of the
    process says that training is over. In an interactive session, whose end may be far away, each says so itself.
    """

    interactive: bool = field(default_factory=lambda: hasattr(sys, "ps1"))
    _count: int = 0
    _url: str = ""
    _epochs: int = 0
    pending: bool = False  # Whether a fit begins of which it is not known yet whether it had ended.

    def had_ended(self, url: str, epochs: int) -> None:
        """Counts a fit that is restored at its end; its callback was given the directory `url`."""
        self._count, self._url, self._epochs = self._count + 1, url, epochs
        self.pending = False
        if self.interactive:
            self.tell()

    def before_training(self) -> str:
        """Returns what to say about them before the log line of a fit that trains; may be empty."""
        count, self._count = self._count, 0
        self.pending = False
        if count == 0:
            return ""
        return f"{'1 fit' if count == 1 else f'{count} fits'} before this one had ended, and trained nothing now. "

    def tell_at_exit(self) -> None:
        """Calls `tell` at the end of the process, unless an error ends it or another fit is beginning."""
        if not self.pending and getattr(sys, "last_type", None) is None:
            self.tell()

    def tell(self) -> None:
        """Logs that training is over already, if there are any."""
        count, self._count = self._count, 0
        if count == 1:
            logger.info(
                "Training is over already: all epochs asked for (%d) are done in %s. Raise epochs to go on, or "
                "pass another directory for another run.",
                self._epochs,
                self._url,
            )
        elif count > 1:
            logger.info(
                "Training is over already: all %d fits of this process had ended, and trained nothing now. Raise the "
                "epochs of the last one to go on, or pass another directory for another run.",
                count,
            )


@dataclass
class _Script:
    """The fits of this process in one directory: how many began, how many ended well, and how the last one did."""

    begun: int = 0
    ended: int = 0
    last_end: str | None = None
    # What their callbacks hold and what is not kept, in words.
    unkept: list[str] = field(default_factory=list)
    last_size: int = 0


_scripts: dict[str, _Script] = {}
_running: dict[str, FitSlot] = {}
_said: set[Hashable] = set()

late_signals: list[Notice] = []
"""Those that came when a fit had ended; they hold for the next one."""

ended_fits = EndedFits()
"""Those of this process."""

atexit.register(ended_fits.tell_at_exit)


class FitSlot:
    """One fit of a process, at its place in the directory that its callback was given.

    `url` is that directory, and `store` is where this fit keeps its checkpoints. `begun_after` says how the fit before
    it ended, None for the first one: it is part of the identity of the fit, which began with what that one had left.
    Raises ValueError if it cannot be told which fit of the script this is.
    """

    def __init__(self, store: Store, staging_dir: str | os.PathLike[str] | None = None) -> None:
        self._script = script = _scripts.setdefault(store.key, _Script())
        if script.begun > max(script.ended, 1) and (
            _place(store, script.begun, staging_dir).key not in _running
        ):
            raise ValueError(
                f"Expected the fits of this process in {store.url} to end one after the other. Received: another one "
                f"after number {script.begun} was left by an error: whether it goes on with that one, or the "
                "script has begun again, cannot be told. Start the script in a new process, or give each fit its own "
                "directory."
            )
        self._number = script.ended + 1
        self.store = _place(store, self._number, staging_dir)
        self.begun_after = script.last_end
        ended_fits.pending = True
        script.begun = max(script.begun, self._number)
        self.url, self._staging_dir, self._base = store.url, staging_dir, store

    def claim(self) -> None:
        """Takes the place for this fit: two fits at once would overwrite each other's checkpoints."""
        if _running.setdefault(self.store.key, self) is not self:
            raise ValueError(
                f"Expected a directory that no other fit of this process is using. Received: "
                f"{self.store.url!r}, in which one is still running. Give each fit its own directory."
            )

    def close(self) -> None:
        """Closes the store, and gives the place back if this fit has it. Can be called twice."""
        try:
            self.store.close()
        except StoreUnavailable as error:  # It does not hide how the fit has ended.
            logger.warning("The last events could not be stored: %s", error)
        finally:
            if _running.get(self.store.key) is self:
                del _running[self.store.key]

    @property
    def beside(self) -> set[str]:
        """The directories of other fits of this process inside this one, which do not make it unusable."""
        within = f"{self.store.key}/"
        return {key.removeprefix(within).partition("/")[0] for key in _scripts if key.startswith(within)}

    def trains(self) -> str:
        """Called before the fit trains; returns how its log line begins, or ""."""
        unkept, self._script.unkept = self._script.unkept, []
        if unkept and is_news(self.url, "unkept", *unkept):
            logger.warning(
                "Once started again, the script may miss what callbacks of a fit that has ended hold now: %s. That fit "
                "will train nothing then, so that code which reads it finds nothing. %s.",
                ", ".join(unkept),
                cure(unkept),
            )
        before = ended_fits.before_training()
        if self._number == 1:
            return before
        if is_news(self.url, "a place of its own") or before:
            return (
                f"{before}This is fit {self._number} of this process in {self.url}, with its own place in "
                f"{self.store.url}. Each fit that has ended keeps its last checkpoint (that of fit "
                f"{self._number - 1}: {size_in_words(self._script.last_size)} of variables). "
            )
        return ""

    def refuse_longer(self, done: int, epochs: int) -> None:
        """Refuses to train on a fit that had ended, if the one after it has begun with what it had left.

        That one would be refused too, but only after this one has trained. This one had ended after `done` epochs, and
        is asked for `epochs` now.
        """
        following = _place(self._base, self._number + 1, self._staging_dir)
        try:
            followed = RUN in following.children("")
        finally:
            following.close()
        if followed:
            raise IdentityMismatch(
                f"Expected fit {self._number} of this script to end after {done} epochs, as it did: the fit after it, "
                f"in {following.url}, has begun with what it had left. Received: epochs={epochs}. Go back to {done} "
                "epochs, or train in another directory. Nothing was trained."
            )

    def ended(self, steps: int, size: int, unkept: Iterable[str] = ()) -> None:
        """Called when the fit has ended well, with `size` bytes of variables; `unkept` see `_Script`."""
        self._script.unkept += unkept
        self._script.ended = max(self._script.ended, self._number)
        self._script.last_size = size
        self._script.last_end = f"fit {self._number} that ended at step {steps}"


def is_news(*what: Hashable) -> bool:
    """Returns whether this process has not asked this about these words before."""
    new = what not in _said
    _said.add(what)
    return new


def _place(store: Store, number: int, staging_dir: str | os.PathLike[str] | None) -> Store:
    if number <= 1:
        return store
    name = f"fit-{number:05d}"
    # By its key, since the script may have changed its working directory; called as the script calls it.
    return open_store(f"{store.key}/{name}", staging_dir=staging_dir, shown=f"{store.url.rstrip('/')}/{name}")
