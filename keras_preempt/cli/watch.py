"""``keras-preempt report --watch``: shows a run while it trains.

On a terminal the picture is renewed in place; elsewhere a line is printed for each thing that has happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from keras_preempt.checkpoint.errors import CheckpointError, ForeignDirectory, StoreUnavailable, one_line
from keras_preempt.checkpoint.run_directory import is_empty
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.cli.options import CannotRead
from keras_preempt.cli.terminal import Terminal
from keras_preempt.process.words import counted
from keras_preempt.report import journal
from keras_preempt.report.account import Account
from keras_preempt.report.loading import Loader, NoEvents
from keras_preempt.report.wording import clock, headline, length, losses, summary
from keras_preempt.report.worker_run import End

PATIENCE = {True: (1.0, 5.0), False: (10.0, 60.0)}
"""Seconds between two looks in a directory (True) or a bucket: right after something has happened, and at the longest
while nothing does; they double in between."""

_MOST_WORKERS = 8
_LEAST_EVENTS = 4


class Watch:
    """Looks at a run until it is finished.

    Args:
        store: Its directory, which need not be there yet.
        directory: The same, as the user names it.
        timeout: Seconds after which to give up; None for never.
        on_change: Called with the account whenever something has happened.
    """

    def __init__(
        self,
        store: Store,
        directory: str,
        timeout: float | None,
        on_change: Callable[[Account], None] = lambda account: None,
    ) -> None:
        self._store = store
        self._loader = Loader(store)
        self._name = one_line(directory)
        self._ends_at = None if timeout is None else time.monotonic() + timeout
        self._least, self._most = PATIENCE[store.is_local]
        self._pause = self._least
        self._on_change = on_change
        self._known: dict[str, str] = {}
        self._seen = False
        self.account: Account | None = None
        self.waits_for = ""

    def run(self, terminal: Terminal) -> bool:
        """Shows the run until it is finished, until the time is over, or until nobody reads what is printed.

        Args:
            terminal: Where lines go, if standard output is no terminal.

        Returns:
            Whether the run is finished.

        Raises:
            CannotRead: It cannot be looked at, or is something else.
            KeyboardInterrupt: The user has seen enough. The terminal is as it was.
        """
        console = Console(highlight=False, markup=False, emoji=False)
        if not console.is_terminal or console.is_dumb_terminal:

            def show(lines: list[str]) -> None:
                for line in lines:
                    terminal.line(line)

            return self._until_over(show, lambda: terminal.lost)
        with Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
            return self._until_over(lambda lines: live.update(self._picture(console), refresh=True))

    def _until_over(
        self, show: Callable[[list[str]], object], lost: Callable[[], bool] = lambda: False
    ) -> bool:
        while True:
            lines = self._look()
            show(lines)
            if self.account is not None and self.account.starts[-1].end is End.FINISHED:
                return True
            if lost():
                return False
            self._pause = self._least if lines else min(2 * self._pause, self._most)
            left = None if self._ends_at is None else self._ends_at - time.monotonic()
            if left is not None and left <= 0:
                return False
            time.sleep(self._pause if left is None else min(self._pause, left))

    def _look(self) -> list[str]:
        """Looks once; returns what is new, in lines."""
        try:
            waits_for = self._look_at_it()
            self._seen = True
        except StoreUnavailable as error:
            if not self._seen:
                raise CannotRead(str(error)) from None
            waits_for = f"it cannot be read now, and is tried again: {one_line(str(error))}"
        except CheckpointError as error:
            raise CannotRead(str(error)) from None
        new = []
        if waits_for and waits_for != self.waits_for:
            new.append(f"{self._name}: {waits_for}")
        self.waits_for = waits_for
        if not waits_for and self.account is not None:
            news = self._news(self.account)
            if news:
                self._on_change(self.account)
            new += news
        return new

    def _look_at_it(self) -> str:
        """Updates the account; returns what is still waited for."""
        try:
            self.account = self._loader.load()
        except NoEvents:
            return "the run has told nothing yet"
        except ForeignDirectory:
            if is_empty(self._store):
                return "there is nothing yet"
            raise
        return ""

    def _news(self, account: Account) -> list[str]:
        """Lines for what has happened since the last call, and for ends that turned out to be others."""
        new = []
        for entry in journal.entries(account):
            known = self._known.get(entry.key)
            if known is None or (entry.what == "end" and known != entry.words):
                self._known[entry.key] = entry.words
                new.append(journal.line(entry, account))
        return new

    # -- On a terminal -----------------------------------------------------------------------------------

    def _picture(self, console: Console) -> RenderableType:
        account = self.account
        waits = [Text(f"{self._name}: {self.waits_for}", "yellow")] if self.waits_for else []
        keys = Text("Ctrl-C ends the watching, not the run.", "dim")
        if account is None:
            return Group(*waits, keys)
        now = time.time()
        entries = journal.entries(account)
        above: list[RenderableType] = [
            Text(f"{self._name}: {headline(account)}", "bold"),
            *waits,
            *(Text(line) for line in summary(account)),
            *(Text(line, "yellow") for line in losses(account)[-2:]),
            Text(""),
            _doing(account, now),
            Text(""),
        ]
        heard = max((entry.at for entry in entries), default=now)
        below = [
            Text(f"Last event {length(max(0.0, now - heard))} ago; ordinary steps are not told. ", "dim")
            + keys
        ]
        taken = sum(len(console.render_lines(part)) for part in [*above, *below])
        room = max(_LEAST_EVENTS, console.height - taken - 1)
        lines = [Text(journal.line(entry, account), no_wrap=True, overflow="ellipsis") for entry in entries]
        return Group(*above, *lines[-room:], *below)


def _doing(account: Account, now: float) -> Table:
    """What each worker does, or how it ended; of many workers, how many do the same."""
    table = Table(box=None, pad_edge=False, show_header=False)
    lives = account.starts[-1].workers
    if len(lives) > _MOST_WORKERS:
        found: dict[str, int] = {}
        for life in lives:
            what = life.spans[-1].what if life.end is End.RUNNING else life.end.value
            found[what] = found.get(what, 0) + 1
        for what, count in found.items():
            table.add_row(counted(count, "worker"), what)
        return table
    for life in lives:
        if life.end is End.RUNNING:
            span = life.spans[-1]
            what, since = span.what, f"for {length(max(0.0, now - span.began))}"
        else:
            what, since = life.end.value, f"at {clock(life.ended, account.began)}"
        done = "" if life.last_step is None else f"step {life.last_step:,}{'' if life.exact else ' or later'}"
        table.add_row(f"w{life.member}", what, since, done, life.host or "")
    return table
