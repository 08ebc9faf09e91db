"""Collects what `keras-preempt inspect` shows of a directory, as data for tables and JSON. Never writes."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import CorruptCheckpoint, NotFound, UnsafeName, UnsupportedFormat
from keras_preempt.checkpoint.finding import CheckpointInfo, committed, is_removed
from keras_preempt.checkpoint.layout import (
    EVENTS,
    MANIFEST,
    attempt_directory,
    is_attempt,
    parse_attempt,
    parse_step,
)
from keras_preempt.checkpoint.reader import verify
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.report import events
from keras_preempt.report.progress import transfer
from keras_preempt.state.saved_weights import is_weight


@dataclass(frozen=True)
class CheckpointSummary:
    """What is known of a checkpoint; what its manifest says is None or empty if that is unreadable."""

    step: int
    directory: str
    incarnation: int | None  # The number of the start that saved it.
    epoch: int | None = None  # From 0.
    phase: str | None = None  # "epoch" (where one begins), "train", "validation" or "end" (of the training).
    batch: int | None = None  # The next one of this phase, from 0.
    saved_at: float | None = None  # In seconds since 1970.
    workers: int | None = None
    writers: tuple[int, ...] = ()  # Those that wrote the weights.
    missing: tuple[int, ...] = ()  # Workers that were killed before they had written their part.
    kind: str | None = None  # "preempted", "periodic", "requested", "interrupted", "deadline" or "finished".
    reason: str | None = None
    finished: bool | None = None
    versions: dict[str, Any] = field(default_factory=dict)
    size: int = 0  # Bytes of all its files.
    files: int = 0
    verified: bool | None = None  # Whether every byte is as it was written; None if not all were read.
    problem: str | None = None  # Why it cannot be used; None if no problem is known.
    notices: tuple[str, ...] = ()  # Those that it was the answer to, as far as the events say.


@dataclass(frozen=True)
class LeftOver:
    step: int
    directory: str
    incarnation: int
    size: int
    files: int
    abandoned: bool  # A later start has claimed the directory. Otherwise it may still be committed.


@dataclass(frozen=True)
class RunSummary:
    directory: str
    run_id: str
    format: int
    variables: int  # Of the model.
    parameters: int  # Their elements.
    optimizer: str  # The name of its class.
    setup: dict[str, Any] | None  # What the first start trained on; None if the run is older than that.
    starts: int
    last_start_at: float | None  # In seconds since 1970; None if that cannot be read.


def utc(moment: float | None) -> str | None:
    """Returns a time as ISO 8601 in UTC, to the second; None if it is not a time."""
    if moment is None:
        return None
    try:
        at = datetime.datetime.fromtimestamp(moment, datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):
        return None
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def run_of(store: Store, run: dict[str, Any]) -> RunSummary:
    try:
        # The variables of the model include metrics and seeds; strings are not parameters.
        weights = [v for v in run["model"] if is_weight(v["name"])]
        shapes = [v["shape"] for v in weights if v["dtype"] != "string"]
        parameters = sum(math.prod(map(int, shape)) for shape in shapes)
        optimizer, setup, version = str(run["optimizer_class"]), run.get("setup"), int(run["format"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CorruptCheckpoint("run.json", f"an unexpected structure ({error!r:.200})") from error
    starts = incarnations.latest(store)
    try:
        claimed = incarnations.read_claim(store, starts).get("claimed_at") if starts else None
    except (NotFound, CorruptCheckpoint, UnsafeName):
        claimed = None
    return RunSummary(
        directory=store.url,
        run_id=run["run_id"],
        format=version,
        variables=len(weights),
        parameters=parameters,
        optimizer=optimizer,
        setup=setup if isinstance(setup, dict) else None,
        starts=starts,
        last_start_at=float(claimed) if isinstance(claimed, (int, float)) else None,
    )


def checkpoints_of(
    store: Store, *, verified: bool, say: Callable[[str], object] = lambda line: None
) -> list[CheckpointSummary]:
    """Summarizes the checkpoints, first the one that a restart tries first; not those that the job removes meanwhile.

    `verified`: every byte is read. `say` is called with a line before something large is read.
    """
    found = [_summary(store, info, verified, say) for info in committed(store)]
    return [summary for summary in found if summary is not None]


def left_over_in(store: Store) -> list[LeftOver]:
    """Lists the attempts that were not committed, the latest step first."""
    newest = incarnations.latest(store)
    found = []
    for folder in store.children(""):
        step = parse_step(folder)
        if step is None:
            continue
        try:
            attempts = [name for name in store.children(folder) if is_attempt(name)]
        except UnsafeName:  # a link out of the directory, which is reported among the checkpoints
            continue
        for attempt in attempts:
            directory = attempt_directory(step, attempt)
            try:
                sizes = {file.name: file.size for file in store.list(directory)}
            except UnsafeName:
                continue
            if sizes and f"{directory}/{MANIFEST}" not in sizes:
                number = parse_attempt(attempt)[0]
                size = sum(sizes.values())
                found.append(LeftOver(step, directory, number, size, len(sizes), number < newest))
    return sorted(found, key=lambda attempt: (attempt.step, attempt.directory), reverse=True)


def _summary(
    store: Store, info: CheckpointInfo, verified: bool, say: Callable[[str], object]
) -> CheckpointSummary | None:
    manifest = info.manifest
    try:
        sizes = {file.name: file.size for file in store.list(info.directory)}
    except UnsafeName:
        sizes = {}
    size = sum(sizes.values())
    problem = None if info.error is None else str(info.error)
    whole = None
    if manifest is not None:
        absent = [ref.name for ref in manifest.parts if sizes.get(f"{info.directory}/{ref.name}") != ref.size]
        if absent:
            problem = str(
                CorruptCheckpoint(f"{info.directory}/{absent[0]}", "no such file of the listed size")
            )
        elif verified:
            say(f"reading {info.directory} ({size / 1e6:,.1f} MB)")
            try:
                verify(store, info, transfer)
            except (CorruptCheckpoint, UnsupportedFormat, UnsafeName) as error:
                problem = str(error)
            whole = problem is None
    if problem is not None and info.attempt and is_removed(store, info):
        return None
    found = CheckpointSummary(
        info.step,
        info.directory,
        parse_attempt(info.attempt)[0] if info.attempt else None,
        size=size,
        files=len(sizes),
        verified=False if problem is not None else whole,
        problem=problem,
    )
    if manifest is None:
        return found
    counts = {name: value for name, value in manifest.position.items() if isinstance(value, int)}
    return replace(
        found,
        epoch=counts.get("epoch"),
        phase=str(manifest.position.get("phase")),
        batch=counts.get("batch"),
        saved_at=manifest.created_at if math.isfinite(manifest.created_at) else None,
        workers=manifest.members,
        writers=tuple(sorted({*manifest.writers, *manifest.holders})),
        **{name: getattr(manifest, name) for name in ("missing", "kind", "reason", "finished", "versions")},
    )


_ANSWERS = ("preempted", "deadline", "interrupted")
_MOST_BYTES, _MOST_FILES = 16 << 20, 500  # of events; more take longer than this is worth


def with_notices(store: Store, checkpoints: Sequence[CheckpointSummary]) -> list[CheckpointSummary]:
    """Adds the notices to the checkpoints that answered them, as far as the events say."""
    if not any(checkpoint.kind in _ANSWERS for checkpoint in checkpoints):
        return list(checkpoints)
    files = store.list(EVENTS)
    if len(files) > _MOST_FILES or sum(file.size for file in files) > _MOST_BYTES:
        return list(checkpoints)
    recorded = events.read(store, on_gap=lambda gap: None)  # The report shows the gaps.
    return [replace(checkpoint, notices=_answered(checkpoint, recorded)) for checkpoint in checkpoints]


def _answered(checkpoint: CheckpointSummary, recorded: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    if checkpoint.kind not in _ANSWERS or checkpoint.saved_at is None:
        return ()
    standing: dict[str, None] = {}
    for event in recorded:
        # A notice of another start is not meant.
        if event["incarnation"] != checkpoint.incarnation or event["event"] not in ("notice", "withdrawn"):
            continue
        if event["time"] > checkpoint.saved_at:
            continue
        notice = f"{event.get('reason')} on worker {event.get('member')}"
        if event["event"] == "notice":
            standing[notice] = None
        else:
            standing.pop(notice, None)
    return tuple(standing)
