"""``keras-preempt save``: asks a running job for a save, through its directory, and waits for it."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from keras_preempt.checkpoint import incarnations, save_request
from keras_preempt.checkpoint.errors import CheckpointError, CorruptCheckpoint, one_line
from keras_preempt.checkpoint.layout import (
    RUN,
    SAVE_REQUEST,
    step_directory,
    step_of,
)
from keras_preempt.checkpoint.run_directory import manifests_in
from keras_preempt.checkpoint.save_request import SaveRequest
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.cli.options import CannotRead, directory_argument, opened_run, seconds_option, store_of
from keras_preempt.process import this_process
from keras_preempt.report.fields import whole
from keras_preempt.report.following import Following

_SAVED, _NOTHING_RUNS, _TIMED_OUT, _NOT_SAVED = 0, 1, 4, 5

_FIT = re.compile(r"fit-[0-9]{5}")

_LOOKS = {True: (0.2, 1.0), False: (3.0, 10.0)}
"""Seconds between two looks at what the job has answered, at first and at the longest: in a directory, in a bucket."""


@click.command()
@directory_argument
@click.option(
    "--wait/--no-wait",
    default=True,
    show_default=True,
    help="Wait until the job has saved. --no-wait only leaves the request.",
)
@seconds_option("--timeout", default=600.0, help="How long to wait; the request is then taken back.")
def save(directory: str, wait: bool, timeout: float) -> int:
    """Ask a running job to save now, and train on.

    DIR is the directory that was given to PreemptionCallback: a path, or gs://bucket/prefix. The request is a small
    file in it, so this works from any machine that can write there, and needs no network between that and the workers.
    The job looks for it every 5 s in a directory and every minute in a bucket (save_on_request=... changes that). All
    workers save at the same step, in the background, and training goes on.

    \b
    Examples:
      keras-preempt save runs/1
      keras-preempt save gs://bucket/runs/1 --timeout 1800
      keras-preempt save runs/1 --no-wait

    \b
    Exit codes:
      0  saved; the line says at which step (with --no-wait: asked)
      1  no job is running there
      2  wrong usage
      3  DIR cannot be read or written, or is not the directory of a run
      4  timed out: the job has not answered; the line says how far it came
      5  the job has answered that it could not save
    """  # noqa: D301 - click's own mark for text that it must not wrap
    limit = time.monotonic() + timeout
    with opened_run(directory) as (base, _), _current(base) as store:
        number = incarnations.latest(store)
        while True:
            job = _Job(store, number)
            if job.is_over():
                raise NothingRuns(f"No job is running in {store.url}: {job.how_it_ended}. Nothing was asked.")
            asked, own = _ask(store, number)
            if not wait:
                click.echo(f"Asked start {number} of the job in {store.url} for a save.")
                return _SAVED
            try:
                _await(job, asked, limit)
            finally:
                if own:
                    job.take_back(asked)
            job.look_for_untold()
            if job.saved is not None:
                click.echo(f"Saved step {step_of(job.saved)} in {store.url}: {job.saved}.{job.also}")
                return _SAVED
            newest = incarnations.latest(store)
            if job.is_over() and newest > number:  # It was started again meanwhile.
                number = newest
                continue
            raise job.failure(timeout)


class NothingRuns(click.ClickException):
    """There is no job to ask."""

    exit_code = _NOTHING_RUNS


class TimedOut(click.ClickException):
    """The job has not answered."""

    exit_code = _TIMED_OUT


class NotSaved(click.ClickException):
    """The job has answered that it could not save."""

    exit_code = _NOT_SAVED


def _ask(store: Store, number: int) -> tuple[SaveRequest, bool]:
    try:
        return save_request.make(store, number, socket.gethostname())
    except CorruptCheckpoint as error:
        raise CannotRead(
            f"Expected no file {SAVE_REQUEST} in {store.url}, or one that keras-preempt save has written. Received: "
            f"{error.why}. Remove it, and ask again."
        ) from None


@contextlib.contextmanager
def _current(base: Store) -> Iterator[Store]:
    """The place of the script's last fit: a fit that is not its first has a folder of its own."""
    fits = [name for name in base.children("") if _FIT.fullmatch(name)]
    if not fits or RUN not in base.children(fits[-1]):
        yield base
        return
    with contextlib.closing(store_of(f"{base.url.rstrip('/')}/{fits[-1]}")) as store:
        yield store


@dataclass
class _Job:
    """One start of the job, as its events tell.

    Attributes:
        store: Its directory.
        number: The number of the start.
        how_it_ended: In words; empty as long as it may run.
        taken: Whether it has seen the request.
        saved: The checkpoint that answers the request, once there is one.
        also: What to add to that, in words.
        failed: Why it could not save; empty unless it has said so.
    """

    store: Store
    number: int
    how_it_ended: str = ""
    taken: bool = False
    saved: str | None = None
    also: str = ""
    failed: str = ""

    def __post_init__(self) -> None:
        self._following = Following(self.store, self.number)
        self._process: object = None
        self._there = frozenset(self.store.children(""))
        self._committed: str | None = None  # The checkpoint of the last commit since the request was made.
        if self.number == 0:
            self.how_it_ended = "it has never been started"
        self.look(None)

    def is_over(self) -> bool:
        """Whether it has ended, as far as it or its launcher has told."""
        return bool(self.how_it_ended)

    def look(self, asked: SaveRequest | None) -> None:
        """Takes in what it has told since the last look."""
        for event in self._following.news():
            self._take(event, asked)
        if not self.how_it_ended and this_process.is_alive(self._process) is False:
            self.how_it_ended = f"worker 0 of start {self.number} is gone, and reported no end"

    def _take(self, event: dict[str, Any], asked: SaveRequest | None) -> None:
        kind = event["event"]
        if kind == "start":
            self._process = event.get("process")
        elif kind in ("requested", "answered") and asked is not None and event.get("id") == asked.id:
            self.taken = True
            if kind == "answered":
                found = event.get("checkpoint")
                self.saved = found if isinstance(found, str) and step_of(found) is not None else None
                self.failed = "" if self.saved else one_line(str(event.get("reason") or "no reason given"))
        elif kind == "commit" and asked is not None:
            self._committed = f"{step_directory(whole(event, 'step') or 0)}/{event.get('attempt')}"
        elif kind == "finish" and self._committed is not None:
            self.saved, self.also = self._committed, " Training is over: that is its end."
        elif kind == "exit" and asked is not None and self.saved is None:
            found = event.get("saved")
            if isinstance(found, str) and step_of(found) is not None:
                self.saved, self.also = found, " The job has left after that: it was told to stop meanwhile."
        elif kind == "end":
            self.how_it_ended = f"start {self.number} has ended ({one_line(str(event.get('reason')))})"
        elif kind == "gone" and not self.how_it_ended:
            self.how_it_ended = f"start {self.number} has ended, with exit code {event.get('code')}"

    def take_back(self, asked: SaveRequest) -> None:
        """Removes the request, if the job has not taken it."""
        if self.taken:
            return
        try:
            self.taken = not save_request.remove(self.store, asked)
        except CheckpointError as error:
            click.echo(f"The request could not be taken back: {error}", err=True)

    def look_for_untold(self) -> None:
        """Looks for the checkpoint that was asked for, if no event tells of it: a log may be unwritable."""
        if self.saved or self.failed or not self.taken:
            return
        new = [folder for folder in self.store.children("") if folder not in self._there]
        for directory, manifest in manifests_in(self.store, new):
            if (manifest.incarnation, manifest.kind) == (self.number, "requested"):
                self.saved, self.also = directory, " It could not write its events."
                return

    def failure(self, timeout: float) -> click.ClickException:
        """What to say where nothing was saved."""
        where = f"the job in {self.store.url}"
        if self.failed:
            return NotSaved(f"Not saved: {self.failed}.")
        if self.is_over():
            return NothingRuns(
                f"T{where[1:]} runs no more: {self.how_it_ended}. Nothing was saved for this request."
            )
        if self.taken:
            return TimedOut(
                f"Timed out: {where} has seen the request, and has not saved within {timeout:g} s. It may still do so: "
                "a save waits for the end of a step."
            )
        return TimedOut(
            f"Timed out: {where} has not looked at the request within {timeout:g} s. Does it run, and look for "
            "requests (save_on_request)? In a bucket it does so once a minute, unless it was told otherwise."
        )


def _await(job: _Job, asked: SaveRequest, limit: float) -> None:
    """Waits until the request is answered, the job is over, or the time."""
    pause, longest = _LOOKS[isinstance(job.store, LocalStore)]
    while job.saved is None and not job.failed and not job.is_over():
        left = limit - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(pause, left))  # Other machines' files cannot be waited for, only looked for.
        pause = min(2 * pause, longest)
        job.look(asked)
