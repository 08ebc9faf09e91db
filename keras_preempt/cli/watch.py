"""``keras-preempt report --watch``: shows a run while it trains.

On a terminal the picture is renewed in place; elsewhere a line is printed for each thing that has happened.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from keras_preempt.checkpoint.errors import ForeignDirectory, StoreUnavailable, one_line
from keras_preempt.checkpoint.storage.store import Store
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
    """Looks at a run until it is finished, or `timeout` seconds are over; its directory need not be there yet.

    `on_change` is called with the account whenever something has happened.
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
        self._ends_at = float("inf") if timeout is None else time.monotonic() + timeout
        self._least, self._most = PATIENCE[store.is_local]
        self._on_change = on_change
        self._shown: dict[str, str] = {}  # The words of each journal entry, by its key.
        self._seen = False
        self._waits_for = ""
        self.account: Account | None = None

    def run(self, terminal: Terminal) -> bool:
        """Shows the run until it is over, time is up, or nobody reads the output; returns whether the run is finished.

        Lines go to `terminal` if standard output is no terminal. At Ctrl-C the terminal is left as it was.
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
        pause = self._least
        while True:
            lines = self._news()
            show(lines)
            if self.account is not None and self.account.starts[-1].end is End.FINISHED:
                return True
            left = self._ends_at - time.monotonic()
            if lost() or left <= 0:
                return False
            pause = self._least if lines else min(2 * pause, self._most)
            time.sleep(min(pause, left))

    def _news(self) -> list[str]:
        """Looks once; returns lines for what is new, and for ends that turned out to be different."""
        waits_for = ""
        try:
            try:
                self.account = self._loader.load()
            except NoEvents:
                waits_for = "the run has no events yet"
            except ForeignDirectory:
                if self._store.children(""):
                    raise
                waits_for = "there is nothing yet"
            self._seen = True
        except StoreUnavailable as error:
            if not self._seen:
                raise
            waits_for = f"it cannot be read now, and is tried again: {one_line(str(error))}"
        lines = []
        if waits_for and waits_for != self._waits_for:
            lines.append(f"{self._name}: {waits_for}")
        self._waits_for = waits_for
        if waits_for or self.account is None:
            return lines
        for entry in journal.entries(self.account):
            known = self._shown.get(entry.key)
            if known is None or (entry.what == "end" and known != entry.words):
                self._shown[entry.key] = entry.words
                lines.append(journal.entry_line(entry, self.account))
        if lines:
            self._on_change(self.account)
        return lines

    def _picture(self, console: Console) -> RenderableType:
        account = self.account
        waits = [Text(f"{self._name}: {self._waits_for}", "yellow")] if self._waits_for else []
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
        last = max((entry.at for entry in entries), default=now)
        below = [
            Text(
                f"Last event {length(max(0.0, now - last))} ago; steps between events are not shown. ", "dim"
            )
            + keys
        ]
        taken = sum(len(console.render_lines(part)) for part in [*above, *below])
        room = max(_LEAST_EVENTS, console.height - taken - 1)
        lines = [
            Text(journal.entry_line(entry, account), no_wrap=True, overflow="ellipsis") for entry in entries
        ]
        return Group(*above, *lines[-room:], *below)


def _doing(account: Account, now: float) -> Table:
    """What each worker does, or how it ended; of many workers, how many do the same."""
    table = Table(box=None, pad_edge=False, show_header=False)
    workers = account.starts[-1].workers
    does = [each.spans[-1].what if each.end is End.RUNNING else each.end.value for each in workers]
    if len(workers) > _MOST_WORKERS:
        for what, count in Counter(does).items():
            table.add_row(counted(count, "worker"), what)
        return table
    for worker, what in zip(workers, does, strict=True):
        if worker.end is End.RUNNING:
            since = f"for {length(max(0.0, now - worker.spans[-1].began))}"
        else:
            since = f"at {clock(worker.ended, account.began)}"
        later = "" if worker.exact else " or later"
        done = "" if worker.last_step is None else f"step {worker.last_step:,}{later}"
        table.add_row(f"w{worker.member}", what, since, done, worker.host or "")
    return table
