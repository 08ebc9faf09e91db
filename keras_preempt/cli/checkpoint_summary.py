"""What `keras-preempt inspect` finds out about a directory: data for a table or for JSON. Reads, never writes."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import CorruptCheckpoint, NotFound, UnsafeName, UnsupportedFormat
from keras_preempt.checkpoint.layout import MANIFEST, attempt_directory, is_attempt, parse_attempt, parse_step
from keras_preempt.checkpoint.reader import CheckpointInfo, committed, verify
from keras_preempt.checkpoint.run_directory import is_removed
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.report.progress import transfer
from keras_preempt.state.saved_weights import is_weight

__all__ = ["CheckpointSummary", "LeftOver", "RunSummary", "checkpoints_of", "left_over_in", "run_of"]


@dataclass(frozen=True)
class CheckpointSummary:
    """A checkpoint.

    Attributes:
        step: Optimizer steps done.
        directory: Its folder in the run's directory.
        incarnation: Number of the start of the job that saved it.
        epoch: Where in the training it was saved, counted from 0; None if it cannot be read, as all that follows.
        phase: One of 'epoch' (at an epoch's begin), 'train', 'validation', 'end' (of the training).
        batch: The batch that comes next in this phase, counted from 0.
        saved_at: When it was committed, in seconds since 1970.
        workers: How many workers there were.
        writers: Those that wrote the weights.
        missing: Those whose own part is missing, since they were killed before they had written it.
        kind: Why it was made: 'preempted', 'periodic', 'deadline' (a grace period is used up) or 'finished'.
        reason: The same in words.
        finished: Whether the training was over.
        versions: Of the software that saved it.
        size: Bytes of all its files.
        files: How many files it has.
        verified: Whether every byte is what was written; None if not all were read.
        problem: Why it cannot be used; None if nothing is known against it.
        notices: What the notices said that it was the answer to; empty if there were none, or no events tell.
    """

    step: int
    directory: str
    incarnation: int | None
    epoch: int | None
    phase: str | None
    batch: int | None
    saved_at: float | None
    workers: int | None
    writers: tuple[int, ...]
    missing: tuple[int, ...]
    kind: str | None
    reason: str | None
    finished: bool | None
    versions: dict[str, Any]
    size: int
    files: int
    verified: bool | None
    problem: str | None
    notices: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON data."""
        return {**asdict(self), "saved_at_utc": utc(self.saved_at)}


@dataclass(frozen=True)
class LeftOver:
    """An attempt to save that was not committed.

    Attributes:
        step: Optimizer steps done.
        directory: Its folder in the run's directory.
        incarnation: Number of the start of the job that made it.
        size: Bytes of its files.
        files: How many there are.
        abandoned: Whether its start is over for sure, since a later one has claimed the directory. Else it may be on
            its way to be committed.
    """

    step: int
    directory: str
    incarnation: int
    size: int
    files: int
    abandoned: bool


@dataclass(frozen=True)
class RunSummary:
    """Whose directory it is.

    Attributes:
        directory: As the user names it.
        run_id: Drawn at the first start.
        format: Version of the format of its files.
        variables: Number of the model's weights.
        parameters: Number of their elements.
        optimizer: Name of its class.
        setup: What the first start trained on: see `checkpoint.setup`; None if the run is older than that.
        starts: How often the job was started.
        last_start_at: When it was started last, in seconds since 1970; None if that cannot be read.
    """

    directory: str
    run_id: str
    format: int
    variables: int
    parameters: int
    optimizer: str
    setup: dict[str, Any] | None
    starts: int
    last_start_at: float | None

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON data."""
        return {**asdict(self), "last_start_at_utc": utc(self.last_start_at)}


def utc(moment: float | None) -> str | None:
    """Returns a moment as ISO 8601 in UTC, to the second; None for a time that is none."""
    if moment is None:
        return None
    try:
        at = datetime.datetime.fromtimestamp(moment, datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):
        return None
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def run_of(store: Store, run: dict[str, Any]) -> RunSummary:
    """Sums up run.json and the claims.

    Raises:
        CorruptCheckpoint: run.json has another structure than ours.
        StoreUnavailable: the storage failed.
    """
    try:
        # Metrics and seeds stand among the variables of the model; strings are no parameters.
        weights = [v for v in run["model"] if is_weight(v["name"])]
        shapes = [v["shape"] for v in weights if v["dtype"] != "string"]
        parameters = sum(_product(shape) for shape in shapes)
        optimizer, setup, version = str(run["optimizer_class"]), run.get("setup"), int(run["format"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CorruptCheckpoint("run.json", f"an unexpected structure ({error!r:.200})") from error
    starts = incarnations.latest(store)
    try:
        claimed = incarnations.read(store, starts).get("claimed_at") if starts else None
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
    store: Store, *, verified: bool, tell: Callable[[str], object] = lambda line: None
) -> list[CheckpointSummary]:
    """Sums up the checkpoints, the one that a restart uses first at the top.

    One that a running job removes meanwhile is left out.

    Args:
        store: The run's directory.
        verified: Whether to read every byte.
        tell: Told what is read, in a line, before something large is.

    Raises:
        StoreUnavailable: the storage failed.
    """
    found = [_summary(store, info, verified, tell) for info in committed(store)]
    return [summary for summary in found if summary is not None]


def left_over_in(store: Store) -> list[LeftOver]:
    """Lists the attempts that were not committed, the latest step first. Raises `StoreUnavailable`."""
    newest = incarnations.latest(store)
    found = []
    for folder in store.children(""):
        step = parse_step(folder)
        if step is None:
            continue
        try:
            attempts = [name for name in store.children(folder) if is_attempt(name)]
        except UnsafeName:  # a link that leads out of the directory: told of among the checkpoints
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
    store: Store, info: CheckpointInfo, verified: bool, tell: Callable[[str], object]
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
            tell(f"reading {info.directory} ({size / 1e6:,.1f} MB)")
            problem = _verify(store, info)
            whole = problem is None
    if problem is not None and info.attempt and is_removed(store, info):
        return None
    position = {} if manifest is None else manifest.position
    return CheckpointSummary(
        step=info.step,
        directory=info.directory,
        incarnation=parse_attempt(info.attempt)[0] if info.attempt else None,
        epoch=_whole(position.get("epoch")),
        phase=None if manifest is None else str(position.get("phase")),
        batch=_whole(position.get("batch")),
        saved_at=None if manifest is None or not math.isfinite(manifest.created_at) else manifest.created_at,
        workers=None if manifest is None else manifest.members,
        writers=() if manifest is None else manifest.writers,
        missing=() if manifest is None else manifest.missing,
        kind=None if manifest is None else manifest.kind,
        reason=None if manifest is None else manifest.reason,
        finished=None if manifest is None else manifest.finished,
        versions={} if manifest is None else manifest.versions,
        size=size,
        files=len(sizes),
        verified=False if problem is not None else whole,
        problem=problem,
    )


def _verify(store: Store, info: CheckpointInfo) -> str | None:
    try:
        verify(store, info, transfer)
    except (CorruptCheckpoint, UnsupportedFormat, UnsafeName) as error:
        return str(error)
    return None


def _product(shape: list[int]) -> int:
    product = 1
    for size in shape:
        product *= int(size)
    return product


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
