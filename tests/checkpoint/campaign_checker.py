"""What must be true of a run's directory after every single operation, whatever befalls whom.

The rules, by the names under which a violation is reported:

- whole: a visible manifest names only parts that are there and right. One exception, see below.
- overwritten: what was stored never changes.
- two winners: all who were told that an attempt is committed were told of the same manifest.
- told: no committer is told that it has committed what was never whole.
- newest: once there is a checkpoint, the newest commit (by incarnation and round) is there and whole.
- superseded: a checkpoint is removed only when as many newer ones are there as are to be kept, and never the first
  of a period that is kept for ever.
- fence: right before it creates a manifest, and with no other operation in between, the committer has looked for a
  newer incarnation and found none; so each incarnation that is over commits at most once more per committer.
- restore: what is restored is what was saved, and no older than the newest checkpoint that was there all the time;
  nothing is begun afresh while there is a checkpoint.
- claims: no two starts have one number.

The exception: fence and manifest are two operations. A committer that is held up between them for so long that a newer
incarnation has begun to clear its attempt away, as never committed, then creates a manifest whose parts go. It is told
so, and takes the manifest back; until then (or for ever, if it dies in between) that manifest is broken. This can only
happen to an attempt that somebody had begun to remove before, and a newer, whole checkpoint is there all the while.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.checkpoint.campaign_reading import MANIFEST, Read, order_of, problem_of, step_of
from tests.checkpoint.campaign_scheduler import Worker


@dataclass(eq=False)
class Restore:
    """A restore that is under way.

    Attributes:
        stable: the whole checkpoints that have been there since it began.
        always_some: whether there was one at every moment since.
    """

    stable: set[str]
    always_some: bool


@dataclass(eq=False)
class Checker:
    """Watches a store; see the module.

    Args:
        read: returns the content of a file, None if there is none.
        names: returns the names of all files.
        fail: is told of a violation.
        max_to_keep: how many checkpoints stay.
        keep_every: steps of a period, None if there are none.
    """

    read: Read
    names: Callable[[], list[str]]
    fail: Callable[[str], None]
    max_to_keep: int
    keep_every: int | None
    whole: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    exceptions: int = 0

    def __post_init__(self) -> None:
        self._contents: dict[str, bytes] = {}
        self._clearing: set[str] = set()
        self._ever_whole: set[str] = set()
        self._committers: dict[str, set[str]] = {}
        self._late: set[str] = set()
        self._after_clearing: set[str] = set()
        self._late_commits: dict[tuple[str, int], int] = {}
        self._winners: dict[str, str] = {}
        self._newest: str | None = None
        self._claims: set[int] = set()
        self._fences: dict[str, int] = {}
        self._restores: list[Restore] = []

    # -- Operations -------------------------------------------------------------------------------------------

    def before(self, worker: Worker, operation: str, name: str) -> None:
        """An operation is about to take effect."""
        if operation == "delete" and name.startswith("step-"):
            self._clearing.add(_folder(name))

    def after(self, worker: Worker, operation: str, name: str) -> None:
        """An operation has taken effect, or has failed of what it found."""
        if operation == "children" and name == "incarnations":
            self._fences[worker.name] = self._newest_claim()
        if operation not in ("create", "writer", "delete"):
            return
        now, before = self.read(name), self._contents.get(name)
        if now == before:
            return
        if now is not None and before is not None:
            self.fail(f"overwritten: {worker.name} changed {name}")
        self._contents.pop(name, None)
        if now is not None:
            self._contents[name] = now
        if name.startswith("step-"):
            self._look_at(worker, name, created=now is not None)

    def _look_at(self, worker: Worker, name: str, *, created: bool) -> None:
        folder = _folder(name)
        if name.endswith(MANIFEST):
            if created:
                self._check_fence(worker, folder)
            elif folder in self.whole:
                self._check_superseded(worker, folder)
        was = folder in self.whole
        self.whole.discard(folder)
        self.broken.discard(folder)
        if f"{folder}/{MANIFEST}" in self._contents:
            problem = problem_of(self.read, folder)
            if problem is None:
                self.whole.add(folder)
                self._ever_whole.add(folder)
                self._newest = max(self._newest or folder, folder, key=order_of)
            else:
                self.broken.add(folder)
                if folder not in self._after_clearing:
                    self.fail(f"whole: after {worker.name} touched {name}: {problem}")
                self.exceptions += 1
        if self._newest is not None and self._newest not in self.whole:
            self.fail(f"newest: {self._newest} is gone or broken after {worker.name} touched {name}")
        if was and folder not in self.whole:
            for restore in self._restores:
                restore.stable.discard(folder)
        for restore in self._restores:
            restore.always_some = restore.always_some and bool(self.whole)

    def _check_fence(self, worker: Worker, folder: str) -> None:
        incarnation = order_of(folder)[0]
        self._committers.setdefault(folder, set()).add(worker.name)
        # Somebody began to clear the attempt away before it was committed: the exception of the module's text.
        if folder in self._clearing:
            self._after_clearing.add(folder)
            self._late.add(folder)
        if worker.late:  # it looked when it sent the request, and was told that that had failed
            self._late.add(folder)
            return
        if worker.last != ("children", "incarnations") or self._fences[worker.name] > incarnation:
            self.fail(f"fence: {worker.name} committed {folder}, last it did {worker.last}")
        if self._newest_claim() > incarnation:
            self._late.add(folder)
            committer = (worker.name, incarnation)
            self._late_commits[committer] = self._late_commits.get(committer, 0) + 1
            if self._late_commits[committer] > 1:
                self.fail(f"fence: {worker.name} committed twice after a newer incarnation had begun")

    def _check_superseded(self, worker: Worker, folder: str) -> None:
        newer = [other for other in self.whole if order_of(other) > order_of(folder)]
        wanted = 1 if folder in self._late else self.max_to_keep
        if len(newer) < wanted:
            self.fail(f"superseded: {worker.name} removed {folder} with only {sorted(newer)} after it")
        if self.keep_every is not None and folder not in self._late:
            period = step_of(folder) // self.keep_every
            others = [other for other in self.whole if step_of(other) // self.keep_every == period]
            if min(others, key=order_of) == folder:
                self.fail(f"superseded: {worker.name} removed {folder}, the first of its period")

    def _newest_claim(self) -> int:
        claims = [name for name in self.names() if name.startswith("incarnations/")]
        return max((int(name[len("incarnations/") : -len(".json")]) for name in claims), default=0)

    # -- What workers were told -------------------------------------------------------------------------------

    def committed(self, worker: Worker, folder: str) -> None:
        """A committer was told that it has committed an attempt."""
        if folder not in self._ever_whole:
            self.fail(f"told: {worker.name} was told that it has committed {folder}, which never was whole")

    def told(self, worker: Worker, folder: str, manifest: str) -> None:
        """A worker was told that an attempt is committed."""
        first = self._winners.setdefault(folder, manifest)
        if first != manifest and folder not in self._late:
            self.fail(f"two winners: {worker.name} was told of {manifest}, another of {first}")

    def claimed(self, worker: Worker, incarnation: int) -> None:
        """A start got its number."""
        if incarnation in self._claims:
            self.fail(f"claims: {worker.name} got {incarnation}, which another start has")
        self._claims.add(incarnation)

    def restore_begins(self) -> Restore:
        """A start begins to look for checkpoints."""
        restore = Restore(set(self.whole), bool(self.whole))
        self._restores.append(restore)
        return restore

    def restore_ends(
        self, worker: Worker, restore: Restore, folder: str | None, told: list[str], *, hindered: bool
    ) -> None:
        """A start has restored a checkpoint, or none; `told` are the errors on the way."""
        self._restores.remove(restore)
        newest = max(restore.stable, key=_progress, default=None)
        if folder is None:
            if not told and (newest or restore.always_some):
                was_there = newest or "a checkpoint"
                self.fail(f"restore: {worker.name} began afresh, although {was_there} was there")
            if newest and not hindered:
                self.fail(f"restore: {worker.name} found nothing to use, although {newest} was there: {told}")
        elif newest and not hindered and _progress(folder) < _progress(newest):
            self.fail(f"restore: {worker.name} took {folder}, although {newest} was there: {told}")

    def at_the_end(self, dead: list[Worker], *, errors: bool) -> None:
        """Nobody runs any more. A manifest may stay broken only if who was about to take it away died or failed."""
        for folder in self.broken:
            if not errors and not any(self._was_busy_with(worker, folder) for worker in dead):
                self.fail(f"whole: {folder} stays broken, and nobody died over it")

    def _was_busy_with(self, worker: Worker, folder: str) -> bool:
        if worker.last == ("list", folder) and worker.name in self._committers.get(folder, ()):
            return False  # it had looked whether its parts are still there
        return worker.last[1].startswith(folder)


def _folder(name: str) -> str:
    return "/".join(name.split("/")[:2])


def _progress(folder: str) -> tuple[int, tuple[int, int]]:
    return step_of(folder), order_of(folder)
