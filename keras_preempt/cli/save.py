"""``keras-preempt save``: asks a running job for a save, through its directory, and waits for it."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import click

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import CheckpointError, CorruptCheckpoint, NotFound, one_line
from keras_preempt.checkpoint.finding import manifests_in
from keras_preempt.checkpoint.layout import EVENTS, RUN, SAVE_REQUEST, step_directory, step_of
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.cli.options import CannotRead, directory_argument, opened_run, seconds_option, store_of
from keras_preempt.process import this_process
from keras_preempt.report import events
from keras_preempt.report.event import whole
from keras_preempt.training.save import requests
from keras_preempt.training.save.requests import SaveRequest

_SAVED, _NOTHING_RUNS, _TIMED_OUT, _NOT_SAVED = 0, 1, 4, 5

_FIT = re.compile(r"fit-[0-9]{5}")

_POLL = {True: (0.2, 1.0), False: (3.0, 10.0)}
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

    DIR is the directory that was given to PreemptionCallback: a path, or a bucket's gs://, s3:// or az:// URL. The
    request is a small file in it, so this works from any machine that can write there, and needs no network between
    that and the workers. The job looks for it every 5 s in a directory and every minute in a bucket
    (save_on_request=... changes that). All workers save at the same step, in the background, and training goes on.

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
    with opened_run(directory) as (base, _), _newest_fit(base) as store:
        while True:
            job = _Job(store, incarnations.latest(store))
            if job.is_over():
                why = f"No job is running in {store.url}: {job.how_it_ended}. Nothing was asked."
                return _error(why, _NOTHING_RUNS)
            try:
                request, own = requests.make_request(store, job.number, socket.gethostname())
            except CorruptCheckpoint as error:
                raise CannotRead(
                    f"Expected no file {SAVE_REQUEST} in {store.url}, or one that keras-preempt save has written. "
                    f"Received: {error.why}. Remove it, and ask again."
                ) from None
            if not wait:
                click.echo(f"Asked start {job.number} of the job in {store.url} for a save.")
                return _SAVED
            try:
                job.wait_for_answer(request, limit)
            finally:
                if own:
                    job.cancel(request)
            job.find_unreported_save()
            if job.saved is not None:
                click.echo(f"Saved step {step_of(job.saved)} in {store.url}: {job.saved}.{job.also}")
                return _SAVED
            if not (job.is_over() and incarnations.latest(store) > job.number):
                return job.failure(timeout)
            # It was started again meanwhile: ask the new start.


def _error(message: str, exit_code: int) -> int:
    click.echo(f"Error: {message}", err=True)
    return exit_code


@contextlib.contextmanager
def _newest_fit(base: Store) -> Iterator[Store]:
    """The place of the script's last fit: a fit that is not its first has a folder of its own."""
    fits = [name for name in base.children("") if _FIT.fullmatch(name)]
    if not fits or RUN not in base.children(fits[-1]):
        yield base
        return
    with contextlib.closing(store_of(f"{base.url.rstrip('/')}/{fits[-1]}")) as store:
        yield store


class _Job:
    """One start of the job, as its events describe it."""

    def __init__(self, store: Store, number: int) -> None:
        self.number = number
        self.how_it_ended = "" if number else "it has never been started"  # Empty as long as it may run.
        self.taken = False  # It has read the request.
        self.saved: str | None = None  # The checkpoint that answers the request.
        self.also = ""  # What to add to that.
        self.failed = ""  # Why it could not save.
        self._store = store
        self._lines_read: dict[str, int] = {}  # by the name of the log
        self._process: object = None
        self._folders_before = frozenset(store.children(""))
        self._committed: str | None = None  # by the last commit since the request was made
        self._look(None)

    def is_over(self) -> bool:
        return bool(self.how_it_ended)

    def wait_for_answer(self, request: SaveRequest, limit: float) -> None:
        """Waits until the request is answered, the job is over, or time is up."""
        pause, longest = _POLL[self._store.is_local]
        while self.saved is None and not self.failed and not self.how_it_ended:
            left = limit - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(pause, left))  # Other machines' files cannot be waited for, only looked at.
            pause = min(2 * pause, longest)
            self._look(request)

    def _look(self, request: SaveRequest | None) -> None:
        for event in self._new_events():
            self._note(event, request)
        if not self.how_it_ended and this_process.is_alive(self._process) is False:
            self.how_it_ended = f"worker 0 of start {self.number} is gone, and reported no end"

    def _new_events(self) -> Iterator[dict[str, Any]]:
        """Yields what the launcher, and then worker 0, have written since the last look."""
        for name in self._store.children(EVENTS):
            log = events.parse_log_name(name)
            # Of a bucket each object is read once: such objects do not grow.
            known = name in self._lines_read and not self._store.logs_grow
            if log is None or log.incarnation != self.number or log.member not in (0, None) or known:
                continue
            try:
                data = self._store.read(f"{EVENTS}/{name}", limit=events.LARGEST)
            except NotFound:  # Removed since it was listed.
                continue
            # A line that is only half there is read when it is whole.
            found = events.parse_events(name, data[: data.rfind(b"\n") + 1])
            yield from found[self._lines_read.get(name, 0) :]
            self._lines_read[name] = len(found)

    def _note(self, event: dict[str, Any], request: SaveRequest | None) -> None:
        kind = event["event"]
        if kind == "start":
            self._process = event.get("process")
        elif kind in ("requested", "answered") and request is not None and event.get("id") == request.id:
            self.taken = True
            if kind == "answered":
                found = event.get("checkpoint")
                self.saved = found if isinstance(found, str) and step_of(found) is not None else None
                self.failed = "" if self.saved else one_line(str(event.get("reason") or "no reason given"))
        elif kind == "commit" and request is not None:
            self._committed = f"{step_directory(whole(event, 'step') or 0)}/{event.get('attempt')}"
        elif kind == "finish" and self._committed is not None:
            self.saved, self.also = self._committed, " Training is over: that is its end."
        elif kind == "exit" and request is not None and self.saved is None:
            found = event.get("saved")
            if isinstance(found, str) and step_of(found) is not None:
                self.saved, self.also = found, " The job has left after that: it was told to stop meanwhile."
        elif kind == "end":
            self.how_it_ended = f"start {self.number} has ended ({one_line(str(event.get('reason')))})"
        elif kind == "gone" and not self.how_it_ended:
            self.how_it_ended = f"start {self.number} has ended, with exit code {event.get('code')}"

    def cancel(self, request: SaveRequest) -> None:
        """Removes the request, if the job has not taken it."""
        if self.taken:
            return
        try:
            self.taken = not requests.remove_request(self._store, request)
        except CheckpointError as error:
            click.echo(f"The request could not be taken back: {error}", err=True)

    def find_unreported_save(self) -> None:
        """Looks for the requested checkpoint if no event reports it: a log may be unwritable."""
        if self.saved or self.failed or not self.taken:
            return
        new = [folder for folder in self._store.children("") if folder not in self._folders_before]
        for directory, manifest in manifests_in(self._store, new):
            if (manifest.incarnation, manifest.kind) == (self.number, "requested"):
                self.saved, self.also = directory, " It could not write its events."
                return

    def failure(self, timeout: float) -> int:
        """Prints why nothing was saved; returns the exit code."""
        where = f"the job in {self._store.url}"
        if self.failed:
            return _error(f"Not saved: {self.failed}.", _NOT_SAVED)
        if self.how_it_ended:
            why = (
                f"T{where[1:]} is no longer running: {self.how_it_ended}. Nothing was saved for this request."
            )
            return _error(why, _NOTHING_RUNS)
        if self.taken:
            return _error(
                f"Timed out: {where} has seen the request, and has not saved within {timeout:g} s. It may still do so: "
                "a save waits for the end of a step.",
                _TIMED_OUT,
            )
        return _error(
            f"Timed out: {where} has not looked at the request within {timeout:g} s. Does it run, and look for "
            "requests (save_on_request)? In a bucket it does so once a minute, unless it was told otherwise.",
            _TIMED_OUT,
        )
