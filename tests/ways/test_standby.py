"""Every way continues in a standby as in a fresh process: the same steps, bits and words of the log."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from keras_preempt.cluster import RestartPolicy, Supervisor
from keras_preempt.cluster.outcome import Outcome
from keras_preempt.cluster.standby import ImportNotes
from tests.cluster.forked import QUIET_CPU
from tests.cluster.harness import ClusterResult, describe
from tests.ways.catalogue.all_ways import ALL
from tests.ways.drill import SCRIPT, Job, parameters
from tests.ways.way import Exact, Verdict, Warned, Way


class WithStandbys(Job):
    """A job that the launcher starts: first undisturbed, and then in processes that have imported what that one did."""

    def undisturbed_and_preempted(self, strikes: Sequence[str]) -> tuple[ClusterResult, list[ClusterResult]]:
        notes = ImportNotes()
        (undisturbed,) = self._launched("undisturbed", (), notes)
        return undisturbed, self._launched("preempted", strikes, notes)

    def _launched(self, run: str, strikes: Sequence[str], notes: ImportNotes) -> list[ClusterResult]:
        """What came of each start; it is struck in all but the last, when the standbys are ready."""
        outputs: dict[int, list[list[str]]] = defaultdict(lambda: [[] for _ in range(self.workers)])
        said: list[str] = []
        ready: list[bool] = []
        start = 0

        def log(worker: int, line: str) -> None:
            outputs[start][worker].append(line)
            if line.startswith("STRUCK"):
                ready.append(supervisor.standbys >= self.workers)

        def environment(incarnation: int) -> dict[str, str | None]:
            nonlocal start
            start = incarnation
            return {**QUIET_CPU, **self.environment(dict(enumerate(strikes)).get(start))}

        supervisor = Supervisor(
            self.workers,
            [sys.executable, str(SCRIPT), *self.arguments(run)],
            policy=RestartPolicy(max_restarts_without_progress=len(strikes)),
            say=said.append,
            log=log,
            environment=environment,
            standby=len(strikes),
            notes=notes,
        )
        report = supervisor.run()
        results = [
            ClusterResult([0] * self.workers, ["\n".join(lines) for lines in outputs[each]], 0.0)
            for each in sorted(outputs)
        ]
        told = "\n".join([*said, *(describe(result.outputs) for result in results)])
        ends = [each.verdict.outcome for each in report.incarnations]
        assert ends == [Outcome.PREEMPTED] * len(strikes) + [Outcome.FINISHED], told
        assert ready == [True] * len(strikes), told
        return results


def cases() -> list[ParameterSet]:
    """Those that train under the package; all of them are chaos."""
    found = parameters(ALL, short_form={})
    return [each for each in found if isinstance(_verdict(*each.values), Exact | Warned)]


def _verdict(way: Way, strategy: str) -> Verdict:
    return way.verdicts[strategy]


@pytest.mark.parametrize(("way", "strategy"), cases())
def test_a_standby_changes_no_way(way: Way, strategy: str, tmp_path: Path) -> None:
    WithStandbys(tmp_path, way, strategy).hold()
