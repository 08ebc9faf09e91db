"""One worker's side of a save: capture the state, write this worker's part, and wait for the commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import asdict

from keras_preempt.agreement.alignment import Kind, Plan, Position
from keras_preempt.agreement.coordinator import LocalCoordinator
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.boxes import size_of
from keras_preempt.checkpoint.commit import check_fence, commit, wait_for_commit
from keras_preempt.checkpoint.errors import (
    CheckpointError,
    Fenced,
    PartsMissing,
    SaveCancelled,
    WriteUncertain,
)
from keras_preempt.checkpoint.layout import attempt_name, part_file
from keras_preempt.checkpoint.partition import Slice, TensorSpec, partition
from keras_preempt.checkpoint.storage.store import Shown, Store, silent
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.writer import discard, write_part
from keras_preempt.report.events import EventLog
from keras_preempt.report.progress import transfer
from keras_preempt.state.model import ModelState
from keras_preempt.training.not_saved import tell_not_saved
from keras_preempt.training.peers import Peers
from keras_preempt.training.save_content import Content, Prepared, Saved
from keras_preempt.training.tidier import Tidier
from keras_preempt.training.waiting import Wait, tried_again

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


class Saver:
    """Writes the checkpoints of one fit.

    Args:
        store: The run's directory.
        model_state: The variables.
        member: The index of this process.
        members: How many processes take part.
        incarnation: The number of this start.
        tidier: Removes what a save makes superfluous.
        events: Where to write what happened.
        on_commit: Called with the step of each checkpoint, and with the seconds from when training stopped for it.
        peers: Knows which workers are gone; None where there are no others.
        patience: Returns the seconds from now for which a save may wait for other workers at most, so that this one can
            still write everything by itself before its machine goes; None if that time is not known. Asked again and
            again while a save waits, since a notice may come meanwhile.

    Attributes:
        member: The index of this process.
        fenced: Says that a newer start of the job has the directory; None as far as this one knows.
    """

    def __init__(
        self,
        store: Store,
        model_state: ModelState,
        member: int,
        members: int,
        incarnation: int,
        tidier: Tidier,
        events: EventLog,
        on_commit: Callable[[int, float], None] = lambda step, seconds: None,
        peers: Peers | None = None,
        patience: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._store = store
        self._model = model_state
        self.member = member
        self._members = members
        self._count = 0
        self._incarnation = incarnation
        self._tidier = tidier
        self._events = events
        self._on_commit = on_commit
        self._peers = peers or Peers(LocalCoordinator())
        self._patience = patience
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

        Every worker makes the same saves at the same boundaries, so that their number names them.

        Args:
            plan: Which workers write what.
            position: Where the main thread stands; the same on every worker.
            content: What to write beside the variables.
            copy: Whether training goes on before `write` is through.
            began_at: When training stopped for this save, in seconds since 1970.
            gone: Workers that have turned out to be gone, so that other holders write their pieces of sharded tensors.

        Raises:
            PiecesLost: Only such workers held some of the model.
            MemoryError: There is none for the values.

        What has failed has taken no number: it can be tried again, or left out with `skip`.
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
            specs=self._specs(content),
            sharded=self._model.sharded_specs(),
            lost=frozenset(gone),
        )
        prepared = self._fetch(attempt, plan, content, copy=copy, began_at=began_at)
        self._count += 1
        return prepared

    def _fetch(
        self, attempt: Attempt, plan: Plan, content: Content, *, copy: bool, began_at: float
    ) -> Prepared:
        mirrored: list[tuple[Slice, Array]] = []
        if self.member in plan.writers:
            share = partition(attempt.specs or (), len(plan.writers))[plan.writers.index(self.member)]
            known = {**content.mirrored, **content.overrides}
            # Only this worker's share is fetched from the device. It has at most one piece of each tensor.
            wanted = {piece.tensor: (piece.start, piece.stop) for piece in share if piece.tensor not in known}
            values = {**known, **self._model.capture_mirrored(wanted, copy=copy, runs=wanted)}
            mirrored = [(piece, values[piece.tensor]) for piece in share]
        boxes = attempt.boxes.get(self.member, ())
        present = self._model.capture_boxes([box for box in boxes if box not in content.boxes], copy=copy)
        sharded = [(box, content.boxes[box] if box in content.boxes else present[box]) for box in boxes]
        local = self._model.capture_local(copy=copy)
        local.update({name: value for name, value in content.overrides.items() if name in local})
        local.update(content.arrays)
        return Prepared(attempt, mirrored, local, content.state, began_at, time.time(), copy, sharded)

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
            shown: Shows how much is written. None: only what training waits for, no bar in the middle of Keras'.
            awaited: Whether training waits for this save. Until it does, a notice that comes does not cut the save.
            on_written: Called with the seconds that it took to write this worker's part, before others are waited for.
            alone: Whether to wait for nobody: the time for that is used up.
        """
        began = time.monotonic()
        written: float | None = None  # When this worker's part was written.
        wait = Wait((lambda: 0.0) if alone else self._patience, awaited)
        attempt, step, directory = save.attempt, save.attempt.step, save.attempt.directory

        def check() -> None:
            if cancelled():
                raise SaveCancelled(
                    f"The save of {directory} was given up: another one cannot wait, or a worker has failed."
                )

        def emit(event: str, **more: object) -> None:
            self._events.emit(event, attempt=attempt.name, step=step, **more)

        def make(tries: int) -> tuple[tuple[int, ...], bool]:
            nonlocal written
            check()
            check_fence(self._store, self._incarnation)
            self.fenced = None  # A start that was refused has withdrawn its claim.
            missing = self._made_by_others(attempt, tries)
            if missing is not None:
                return missing, self.member == attempt.writers[0]
            if written is None:
                # What failed last may have come after the part list, which others have read by now.
                listed = tries > 0 and part_file(self.member) in self._store.children(directory)
                if tries and not listed:
                    discard(self._store, directory, self.member)
                if not listed:
                    write_part(
                        self._store,
                        directory,
                        self.member,
                        save.mirrored,
                        save.local,
                        save.state,
                        attempt.position,
                        before_file=check,
                        shown=shown or (silent if save.background else transfer),
                        sharded=save.sharded,
                    )
                written = time.monotonic()
                emit("save", seconds=written - began, **save.times)
                on_written(written - began)
                wait.begin()
            with self._peers.watched():
                return self._commit(attempt, check, wait)

        known = self.fenced
        self._tidier.changed(directory)
        try:
            missing, tidies = tried_again(make, self._patience)
        except SaveCancelled as error:
            logger.info("%s", error)
            self._discard(directory)
            return Saved(None, time.monotonic() - began)
        except WriteUncertain as error:
            emit("error", reason=f"not known whether saved: {error}", **save.times)
            logger.error("It is NOT KNOWN whether the checkpoint at step %d was saved: %s", step, error)
            return Saved(None, time.monotonic() - began, uncertain=True)
        except Exception as error:  # Whatever fails, training goes on, or ends with its own status.
            if isinstance(error, Fenced):
                self.fenced = error.with_traceback(None)  # Which would keep the values of the save.
            if not (known and isinstance(error, Fenced)):  # Else the user knows already, and why.
                emit("error", reason=f"not saved: {error}", **save.times)
                tell_not_saved(step, error)
            self._discard(directory)
            late = error.late if isinstance(error, PartsMissing) else ()
            cut = bool(late) and wait.over() and self._peers.gone.isdisjoint(late)
            return Saved(None, time.monotonic() - began, late=late, cut=cut)
        seconds = time.monotonic() - began
        emit("commit", seconds=time.monotonic() - (written or began), missing=list(missing))
        self._on_commit(step, seconds if save.began_at is None else time.time() - save.began_at)
        if tidies:
            self._tidy_after(attempt)
        return Saved(directory, seconds, missing)

    def _discard(self, directory: str) -> None:
        try:
            discard(self._store, directory, self.member)
        except (CheckpointError, OSError) as error:
            logger.info("What was written of %s stays until the next start: %s", directory, error)

    def _specs(self, content: Content) -> list[TensorSpec]:
        """All mirrored tensors, in the same order on every worker."""
        variables = self._model.mirrored_signature()
        specs = [TensorSpec(v["name"], v["dtype"], tuple(v["shape"])) for v in variables]
        return specs + [
            TensorSpec(name, value.dtype.name, value.shape) for name, value in content.mirrored.items()
        ]

    def _made_by_others(self, attempt: Attempt, tries: int) -> tuple[int, ...] | None:
        """Which parts a save lacks that others have committed already, taking this worker for gone; else None."""
        look = attempt.lost or tries
        manifest = wait_for_commit(self._store, attempt.directory, timeout=0.0) if look else None
        return None if manifest is None else manifest.missing

    def _commit(
        self, attempt: Attempt, check: Callable[[], None], wait: Wait
    ) -> tuple[tuple[int, ...], bool]:
        """Returns which parts the checkpoint lacks, and whether this worker has committed it."""
        share = sum(spec.nbytes for spec in attempt.specs or ()) / len(attempt.writers)
        pieces = max(map(size_of, attempt.boxes.values()), default=0)
        patience = COMMIT_PATIENCE + (share + pieces) / SLOWEST_WRITE
        everyone = frozenset(range(self._members))

        def pause(seconds: float) -> None:
            check()
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
            timeout=patience,
            optional_timeout=min(DOOMED_TIMEOUT, patience),
            gone=lambda: everyone if wait.over() else self._peers.gone,
            wait=pause,
        )
        return manifest.missing, True

    def _tidy_after(self, attempt: Attempt) -> None:
        # Once more: it may have been looked into while it was written.
        self._tidier.changed(attempt.directory)
        if attempt.finished:
            self._tidier.now()
        elif not attempt.doomed and attempt.kind not in _LEAVES:
            self._tidier.soon()  # Whoever is about to leave has no time for it; the next start does it.

    def _lacks_a_writer(self, attempt: Attempt) -> bool:
        """Whether the save has failed with a worker that is gone: the committer, or a writer without a part.

        One under notice counts as a writer if it has to write pieces of sharded tensors.
        """
        gone = self._peers.gone.intersection({*attempt.writers, *attempt.holders})
        if not gone:
            return False
        names = self._store.children(attempt.directory)
        return attempt.writers[0] in gone or any(part_file(member) not in names for member in gone)
