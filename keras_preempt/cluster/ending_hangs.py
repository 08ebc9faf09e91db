"""Ends a start of a job that hangs, after it has shown in the log where each of its threads is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from keras_preempt.cluster.evidence import is_stopped, stacks, threads_of
from keras_preempt.cluster.hangs import Hang, HangDetector, Limits
from keras_preempt.cluster.local import LocalCluster
from keras_preempt.process.heartbeat import Beat, stacks_file


class HangWatch:
    """Watches the workers of one start, before they start. `say` is called with each line about what it sees.

    Attributes:
        found: How the job hung; None as long as it does not.
        steps: The training steps that each worker had done when it ended; None where that is not known exactly.
    """

    def __init__(
        self, folder: Path, cluster: LocalCluster, limits: Limits, say: Callable[[str], None]
    ) -> None:
        self.found: Hang | None = None
        self.steps: dict[int, int | None] = {}
        self._folder, self._cluster, self._say = folder, cluster, say
        self._watch = HangDetector(
            folder, cluster.size, limits, lambda worker, beat: is_stopped(self._pid(worker, beat))
        )

    def look(self, grace: float) -> None:
        """Looks at the workers; ends them all if the job hangs, those that do not answer after `grace` seconds."""
        if self.found is not None:
            return
        hang = self._watch.look(self._cluster.is_running)
        if hang is None:
            return
        self.found = hang
        self._say(
            f"hang: no progress of {' and '.join(f'w{index}' for index in hang.causes)} within {hang.limit:.0f} s "
            f"({hang.reason}). Ending all workers, to start them again."
        )
        self._show(hang)
        self._cluster.kill_all(grace)

    def close(self) -> None:
        """The workers have ended."""
        self.steps = {worker: self._watch.steps(worker) for worker in range(self._cluster.size)}
        self._watch.close()

    def _pid(self, worker: int, beat: Beat) -> int:
        """The process that trains, or else the worker's command. What it says of itself is believed of its own."""
        return beat.pid if beat.pid in self._cluster.processes(worker) else self._cluster.pids[worker]

    def _show(self, hang: Hang) -> None:
        beats = {worker: self._watch.beat(worker) for worker in hang.positions}
        pids = {worker: self._pid(worker, beat) for worker, beat in beats.items()}
        for worker, position in sorted(hang.positions.items()):
            self._say(f"hang: w{worker} is {position.words}")
            if threads := threads_of(pids[worker]):
                self._say(f"hang: w{worker}, process {pids[worker]}: {threads}")
        found = stacks(
            {
                worker: (beat.pid, beat.signal, self._folder / stacks_file(worker))
                for worker, beat in beats.items()
                if beat.pid == pids[worker]
            }
        )
        for worker in sorted(hang.positions):
            lines = found.get(worker)
            if not lines:
                self._say(f"hang: no stacks of w{worker}: {self._why_none(pids[worker], beats[worker])}")
                continue
            self._cluster.show(worker, f"keras-preempt: the stacks of all threads of process {pids[worker]}:")
            for line in lines:
                self._cluster.show(worker, line)

    @staticmethod
    def _why_none(pid: int, beat: Beat) -> str:
        if is_stopped(pid):
            return "a process that is stopped cannot write them"
        if beat.pid != pid:
            return "it has not imported keras_preempt"
        if not beat.signal:
            return "it had no real-time signal left for them"
        return "it has not answered, as in an uninterruptible sleep"
