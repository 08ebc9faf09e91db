"""One worker's side of a save: capture the state, write this worker's part, and wait for the commit."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial

from keras_preempt.agreement.coordinator import Coordinator, LocalCoordinator
from keras_preempt.agreement.messages import Kind, Plan, Position
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.commit import (
    Patience,
    check_fence,
    commit,
    wait_for_commit,
    wait_for_parts,
)
from keras_preempt.checkpoint.errors import (
    AlreadyExists,
    CheckpointError,
    Fenced,
    PartsMissing,
    SaveCancelled,
    WriteUncertain,
)
from keras_preempt.checkpoint.in_memory import InMemory
from keras_preempt.checkpoint.layout import MANIFEST, attempt_directory, attempt_name, part_file
from keras_preempt.checkpoint.machine_memory import MachineMemory
from keras_preempt.checkpoint.storage.store import Shown, Store, silent
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.values import Box, Value, size_of
from keras_preempt.checkpoint.writer import WorkerShare, discard, write_part
from keras_preempt.report.events import EventLog
from keras_preempt.report.progress import transfer
from keras_preempt.state.component import Content
from keras_preempt.state.model import ModelState
from keras_preempt.training.save.tidier import Tidier
from keras_preempt.training.save.waiting import Peers, Wait, tell_not_saved, tried_again

logger = logging.getLogger("keras_preempt")

COMMIT_PATIENCE = 60.0
"""Seconds that the committer waits for the parts of the other writers, and they for its manifest, ..."""

SLOWEST_WRITE = 5e6
"""... and one second more for as many bytes of a writer's share: a slower one is taken for dead."""

DOOMED_TIMEOUT = 15.0
"""Seconds that the committer waits for the small part of a worker under notice. It is written while the
writers write theirs; a worker that has not finished by then was killed."""

_LEAVES = frozenset({Kind.PREEMPTED.value, Kind.DEADLINE.value, Kind.INTERRUPTED.value})
"""Kinds of saves after which nobody tidies up: a machine goes, or a user waits."""


@dataclass(frozen=True)
class Saved:
    """The outcome of a save.

    Attributes:
        name: The folder of the committed checkpoint; None if there is none.
        seconds: How long the save took this worker.
        missing: Workers whose local part is missing.
        uncertain: Whether it may be committed nevertheless: the storage has not answered, and may still carry it out.
        late: Writers because of which the save failed: they are gone, or too slow.
        cut: Whether it failed only because this worker has no time to wait longer: its machine goes soon.
    """

    name: str | None
    seconds: float
    missing: tuple[int, ...] = ()
    uncertain: bool = False
    late: tuple[int, ...] = ()
    cut: bool = False


@dataclass(frozen=True)
class Prepared:
    """What one worker writes of a checkpoint, on the host; times are in seconds since 1970."""

    attempt: Attempt
    share: WorkerShare
    began_at: float | None = None  # When training stopped for this save; None if it did not.
    ready_at: float | None = None  # When everything was on the host.
    background: bool = False  # Whether training went on then.

    @property
    def times(self) -> dict[str, object]:
        """What it has cost training, for the events."""
        return {"began_at": self.began_at, "ready_at": self.ready_at, "background": self.background}


@dataclass
class _Write:
    """A save while it is written; see `Saver.write`."""

    save: Prepared
    cancelled: Callable[[], bool]
    shown: Shown
    wait: Wait
    on_written: Callable[[float], None]
    began: float = field(default_factory=time.monotonic)
    written: float | None = None  # When this worker's part was written.

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def check(self) -> None:
        if self.cancelled():
            raise SaveCancelled(
                f"The save of {self.save.attempt.directory} was given up: another one cannot wait, or a worker has "
                "failed."
            )


def stored_together(model: ModelState, content: Content) -> list[Value]:
    """Returns the values that the workers store together, in the same order on every worker."""
    values = model.values()
    known = {value.name for value in values}
    more = {name: array for name, array in content.values.whole.items() if name not in known}
    return values + [Value(name, array.dtype.name, array.shape) for name, array in more.items()]


def fetched(
    model: ModelState, boxes: Sequence[Box], content: Content, *, copy: bool
) -> list[tuple[Box, Array]]:
    """Fetches the values of boxes from the device, and nothing else; `copy` see `ModelState.read`."""
    given = {box: value for box in boxes if (value := content.values.get(box)) is not None}
    arrays = {**model.read([box for box in boxes if box not in given], copy=copy), **given}
    return [(box, arrays[box]) for box in boxes]


class Saver:
    """Writes the checkpoints of one fit.

    Args:
        store: The run's directory.
        model_state: The variables.
        incarnation: The number of this start.
        tidier: Removes what a save makes superfluous.
        events: Where to write what happened.
        coordinator: Numbers the workers, and knows which of them are gone; None for one process.
        patience: Returns for how many seconds from now a save may wait for other workers, so that this one can still
            write everything by itself before its machine goes; None if that is not known. It is asked repeatedly, since
            a notice may come while a save waits.

    Attributes:
        on_commit: Called as on_commit(step, seconds_training_was_stopped).
        fenced: Says that a newer start of the job has the directory; None as far as this one knows.
        peers: Which workers are gone.
    """

    def __init__(
        self,
        store: Store,
        model_state: ModelState,
        incarnation: int,
        tidier: Tidier,
        events: EventLog,
        coordinator: Coordinator | None = None,
        patience: Callable[[], float | None] = lambda: None,
    ) -> None:
        coordinator = coordinator or LocalCoordinator()
        self.member, self._members = coordinator.member, coordinator.members
        self._store = store
        self._model = model_state
        self._count = 0
        self._incarnation = incarnation
        self._tidier = tidier
        self._events = events
        self._patience = patience
        self.peers = Peers(coordinator)
        self.on_commit: Callable[[int, float], None] = lambda step, seconds: None
        self.fenced: Fenced | None = None

    def prepare(
        self,
        plan: Plan,
        position: Position,
        content: Content,
        *,
        copy: bool,
        began_at: float,
        gone: Collection[int] = (),
    ) -> Prepared:
        """Fetches what this worker has to write, and nothing else.

        Every worker makes the same saves at the same boundaries, so that their number names them. What has failed has
        taken no number: it can be tried again, or left out with `skip`.

        Args:
            plan: Which workers write what.
            position: Where the main thread stands; the same on every worker.
            content: What to write beside the variables.
            copy: Whether training goes on before `write` has ended.
            began_at: When training stopped for this save, in seconds since 1970.
            gone: Workers that have turned out to be gone, so that other holders write their pieces of divided values.

        Raises:
            PiecesLost: Only such workers held some of the model.
            MemoryError: There is none for the values.
        """
        attempt = Attempt(
            step=position.step or 0,
            name=attempt_name(self._incarnation, self._count),
            position={**asdict(position), "step": position.step or 0},
            kind=plan.kind.value,
            members=self._members,
            writers=plan.writers,
            doomed=plan.doomed,
            finished=position.phase == "end",
            reason=f"called by {plan.kind.value}",
            versions=backend().versions(),
            values=stored_together(self._model, content),
            lost=frozenset(gone),
        )
        boxes = fetched(self._model, attempt.boxes.get(self.member, ()), content, copy=copy)
        local = {**self._model.capture_local(copy=copy), **content.values.local}
        share = WorkerShare(boxes, local, content.state, attempt.position)
        self._count += 1
        return Prepared(attempt, share, began_at, time.time(), copy)

    def store(self, held: InMemory, memory: MachineMemory, kind: Kind) -> Saved:
        """Copies a checkpoint from the memory of the machines to the directory; every worker calls this."""
        assert held.manifest is not None
        began, manifest = time.monotonic(), held.manifest
        name = attempt_name(self._incarnation, self._count)
        directory = attempt_directory(held.step, name)
        self._count += 1
        try:
            check_fence(self._store, self._incarnation)
            for part in sorted(part for part, giver in held.givers.items() if giver == self.member):
                memory.copy_part(self._store, held.directory, directory, part)
            left = self._patience()
            most = COMMIT_PATIENCE if left is None else min(left, COMMIT_PATIENCE)
            wait_for_parts(self._store, directory, manifest.members, Patience(most))
            # The same bytes on every worker: whoever is first commits.
            kept = replace(manifest, incarnation=self._incarnation, attempt=name, kind=kind.value)
            with contextlib.suppress(AlreadyExists):
                self._store.create(f"{directory}/{MANIFEST}", kept.to_json())
        except (CheckpointError, OSError) as error:
            tell_not_saved(held.step, error)
            return Saved(None, time.monotonic() - began)
        self._tidier.changed(directory)
        return Saved(directory, time.monotonic() - began)

    def skip(self) -> None:
        """Leaves out the name of one save, which the other workers may be making without this one."""
        self._count += 1

    def write(
        self,
        save: Prepared,
        cancelled: Callable[[], bool] = lambda: False,
        shown: Shown | None = None,
        *,
        awaited: Callable[[], bool] = lambda: True,
        on_written: Callable[[float], None] = lambda seconds: None,
        alone: bool = False,
    ) -> Saved:
        """Writes and commits; returns when the checkpoint is committed or cannot be.

        Args:
            save: From `prepare`.
            cancelled: Whether to give up: asked between two files and while others are waited for.
            shown: Shows how much is written. None: a bar if training waits, which cannot get between Keras' own.
            awaited: Whether training waits for this save. Until it does, a notice that comes does not cut the save.
            on_written: Called with the seconds that it took to write this worker's part, before others are waited for.
            alone: Whether to wait for nobody: the time for that is used up.
        """
        attempt, directory = save.attempt, save.attempt.directory
        wait = Wait((lambda: 0.0) if alone else self._patience, awaited)
        bar = shown or (silent if save.background else transfer)
        write = _Write(save, cancelled, bar, wait, on_written)
        known = self.fenced
        self._tidier.changed(directory)
        try:
            missing, tidies = tried_again(partial(self._make, write), self._patience)
        except SaveCancelled as error:
            logger.info("%s", error)
            self._discard(directory)
            return Saved(None, write.seconds)
        except WriteUncertain as error:
            self._emit("error", attempt, reason=f"not known whether saved: {error}", **save.times)
            logger.error(
                "It is NOT KNOWN whether the checkpoint at step %d was saved: %s", attempt.step, error
            )
            return Saved(None, write.seconds, uncertain=True)
        except Exception as error:  # Whatever fails, training goes on, or ends with its own status.
            if isinstance(error, Fenced):
                self.fenced = error.with_traceback(None)  # Which would keep the values of the save.
            if not (known and isinstance(error, Fenced)):  # Else the user knows already, and why.
                self._emit("error", attempt, reason=f"not saved: {error}", **save.times)
                tell_not_saved(attempt.step, error)
            self._discard(directory)
            late = error.late if isinstance(error, PartsMissing) else ()
            cut = bool(late) and wait.over() and self.peers.gone.isdisjoint(late)
            return Saved(None, write.seconds, late=late, cut=cut)
        seconds = write.seconds
        committing = time.monotonic() - (write.written or write.began)
        self._emit("commit", attempt, seconds=committing, missing=list(missing))
        self.on_commit(attempt.step, seconds if save.began_at is None else time.time() - save.began_at)
        if tidies:
            self._tidier.changed(directory)  # Once more: it may have been looked into while it was written.
            if attempt.finished:
                self._tidier.now()
            elif not attempt.doomed and attempt.kind not in _LEAVES:
                self._tidier.soon()  # Whoever is about to leave has no time for it; the next start does it.
        return Saved(directory, seconds, missing)

    def _make(self, write: _Write, tries: int) -> tuple[tuple[int, ...], bool]:
        """Returns which parts the checkpoint lacks, and whether this worker is the one that tidies up."""
        save, attempt, directory = write.save, write.save.attempt, write.save.attempt.directory
        write.check()
        check_fence(self._store, self._incarnation)
        self.fenced = None  # A start that was refused has withdrawn its claim.
        if attempt.lost or tries:  # Others may have committed it, and taken this worker for gone.
            manifest = wait_for_commit(self._store, directory, timeout=0.0)
            if manifest is not None:
                return manifest.missing, self.member == attempt.writers[0]
        if write.written is None:
            # What failed last may have come after the part list, which others have read by now.
            listed = tries > 0 and part_file(self.member) in self._store.children(directory)
            if tries and not listed:
                discard(self._store, directory, self.member)
            if not listed:
                write_part(self._store, directory, self.member, save.share, write.check, write.shown)
            write.written = time.monotonic()
            self._emit("save", attempt, seconds=write.written - write.began, **save.times)
            write.on_written(write.written - write.began)
            write.wait.begin()
        with self.peers.watched():
            return self._commit(write)

    def _commit(self, write: _Write) -> tuple[tuple[int, ...], bool]:
        attempt, wait = write.save.attempt, write.wait
        patience = COMMIT_PATIENCE + max(map(size_of, attempt.boxes.values())) / SLOWEST_WRITE
        everyone = frozenset(range(self._members))

        def pause(seconds: float) -> None:
            write.check()
            # Other machines' files cannot be waited for, only looked for.
            time.sleep(min(seconds, wait.left()))

        if self.member != attempt.writers[0]:
            manifest = wait_for_commit(
                self._store,
                attempt.directory,
                patience,
                given_up=lambda: wait.over() or self._lacks_a_writer(attempt),
                wait=pause,
            )
            if manifest is not None:
                return manifest.missing, False
            # So this worker does, if only the manifest is missing; else it finds out which parts are.
            logger.warning("Worker %d does not commit %s.", attempt.writers[0], attempt.directory)
            patience = 0.0
        manifest = commit(
            self._store,
            attempt,
            Patience(
                patience,
                min(DOOMED_TIMEOUT, patience),
                gone=lambda: everyone if wait.over() else self.peers.gone,
                wait=pause,
            ),
        )
        return manifest.missing, True

    def _lacks_a_writer(self, attempt: Attempt) -> bool:
        """Whether the save has failed with a worker that is gone: the committer, or a writer without a part.

        One under notice counts as a writer if it has to write pieces of divided values.
        """
        gone = self.peers.gone.intersection({*attempt.writers, *attempt.holders})
        if not gone:
            return False
        names = self._store.children(attempt.directory)
        return attempt.writers[0] in gone or any(part_file(member) not in names for member in gone)

    def _emit(self, event: str, attempt: Attempt, **more: object) -> None:
        self._events.emit(event, attempt=attempt.name, step=attempt.step, **more)

    def _discard(self, directory: str) -> None:
        try:
            discard(self._store, directory, self.member)
        except (CheckpointError, OSError) as error:
            logger.info("What was written of %s stays until the next start: %s", directory, error)
