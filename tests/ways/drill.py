"""Checks a way against its verdict, with real processes and real signals."""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.cluster.harness import ClusterResult, all_fresh, describe, run_cluster
from tests.cluster.outcome import assert_identical
from tests.ways.catalogue.all_ways import module_of
from tests.ways.way import NEXT_RUN, ONE, PLAIN, STRATEGIES, STRIKE, WORKERS, Exact, KerasFails, Warned, Way

SCRIPT = Path(__file__).with_name("run.py")
PREEMPTED = 75
TIMEOUT = 240.0

#: The ways that `make test` runs, by strategy; `make chaos` runs every way under every strategy. One of each kind of
#: state that is kept: what is left out takes the same path through the package as something that is in, in part as one
#: of the jobs drawn at random (`test_campaign`).
SHORT_FORM: Mapping[str, tuple[str, ...]] = {
    # Input: a warning, state of an iterator, redraw, replay of all, of an epoch, counts of a shuffle's seed generator.
    "unseeded": (ONE,),
    "arrays": (ONE,),
    "grain-loader": (ONE,),
    "generator": (ONE,),
    "split-shuffle": (ONE,),
    # Models: variables of every kind, built by the first batch, odd batches and logs.
    "plain-variables": (ONE,),
    "gan": (ONE,),
    "metric-learning": (ONE,),
    "nested-logs": (ONE,),
    "loss-scaling": (ONE,),
    # Fits: where one begins and ends, and what follows it.
    "averaged-then-tuned": (ONE,),
    "callbacks-by-hand": (ONE,),
    # Callbacks: weights changed for a validation, and an error; attributes and files are drawn.
    "own-swap": (ONE,),
    "backup-and-restore": (ONE,),
}


class Job:
    """The runs of one way under one strategy: one undisturbed, then one that is preempted and continued.

    Args:
        folder: An empty folder for all of it.
        way: What is run.
        strategy: One of `STRATEGIES`.
        place: Where our callback stands among the others: "first", "middle" or "last".
        backend: What Keras runs on.
    """

    def __init__(
        self, folder: Path, way: Way, strategy: str, place: str = "last", backend: str = "tensorflow"
    ) -> None:
        self.way = way
        self.workers = 2 if strategy == WORKERS else 1
        self._folder = folder
        self._strategy = strategy
        self._place = place
        self._backend = backend

    def output(self, run: str) -> Path:
        """The prefix of what a run of that name ends with."""
        return self._folder / run / "output"

    def start(self, *runs: str, strike: str | None = None, count: bool = False) -> ClusterResult:
        """Runs one start of each run to its end, all in the same process, of which the last one is struck."""
        arguments = [*(["--count"] if count else []), *self.arguments(*runs)]
        return run_cluster(
            SCRIPT, self.workers, args=arguments, env=self.environment(strike), timeout=TIMEOUT
        )

    def arguments(self, *runs: str) -> list[str]:
        """Those of the script; makes the folders of these runs."""
        folders = [self._folder / run for run in runs]
        for folder in folders:
            folder.mkdir(exist_ok=True)
        return [module_of(self.way.name), self.way.name, self._strategy, self._place, *map(str, folders)]

    def environment(self, strike: str | None) -> dict[str, str | None]:
        """The variables of a start that is struck there."""
        return {STRIKE: strike, "KERAS_BACKEND": self._backend}

    def undisturbed_and_preempted(self, strikes: Sequence[str]) -> tuple[ClusterResult, list[ClusterResult]]:
        """An undisturbed run, and all starts of one that is preempted where the strikes say and ends well."""
        first, *others = strikes
        if self._strategy in SHORT_FORM.get(self.way.name, ()) and not all_fresh():
            # What follows a preemption needs a process of its own; what comes before it does not.
            both = self.start("undisturbed", "preempted", strike=first).assert_codes(PREEMPTED)
            parts = both.outputs[0].partition(f"{NEXT_RUN}\n")
            undisturbed, preempted = (ClusterResult(both.codes, [part], 0.0) for part in parts[::2])
        else:
            undisturbed = self.start("undisturbed").assert_ok()
            preempted = self.start("preempted", strike=first).assert_codes(PREEMPTED)
        starts = [self.start("preempted", strike=strike).assert_codes(PREEMPTED) for strike in others]
        return undisturbed, [preempted, *starts, self.start("preempted").assert_ok()]

    def hold(self, strikes: Sequence[str] | None = None) -> None:
        """Asserts what the verdict says."""
        verdict = self.way.verdicts[self._strategy]
        strikes = self.way.strikes if strikes is None else strikes
        if isinstance(verdict, Exact):
            undisturbed, results = self.undisturbed_and_preempted(strikes)
            for worker in range(self.workers):
                expected, found = steps_of([undisturbed], worker), steps_of(results, worker)
                assert expected, "the job recorded no step"
                assert found == expected, "\n".join(difflib.ndiff(expected, found))
            assert_identical(self.output("undisturbed"), self.output("preempted"), self.workers)
            if self.way.drawn is not None:
                for worker in range(self.workers):
                    assert _drawn(results[-1], worker) <= self.way.drawn, "batches were drawn again"
            _assert_said(results[0], "NOT exact", said=False)
            _assert_said(results[0], _PROMISED, said=verdict.promised)
        elif isinstance(verdict, Warned):
            undisturbed, results = self.undisturbed_and_preempted(strikes)
            _assert_said(results[-1 if verdict.at_restart else 0], verdict.match)
            if not verdict.at_restart and not verdict.at_once:
                _assert_said(results[0], "bit-identical", said=False)
            for worker in range(self.workers):
                expected, found = _places([undisturbed], worker), _places(results, worker)
                assert found == expected, "a step was left out or run twice: " + str(found)
        else:
            _assert_fails(self.start(PLAIN if isinstance(verdict, KerasFails) else "refused"), verdict.match)

    def changes_nothing(self) -> None:
        """Asserts that a run with our callback is, bit by bit and call by call, one without it.

        Of a way that is not exact that can be told only if two runs without it are alike; otherwise it is skipped.
        """
        changed = self._differences(PLAIN, "undisturbed")
        is_exact = isinstance(self.way.verdicts[self._strategy], Exact)
        if changed and not is_exact and self._differences(f"{PLAIN}-1", f"{PLAIN}-2"):
            pytest.skip("two runs without our callback differ as well")
        assert not changed, changed

    def _differences(self, *runs: str) -> str:
        """Returns how two undisturbed runs differ; empty if they do not."""
        counted = not self.way.name.startswith("grain")  # Its threads draw ahead, each time another number.
        # In two processes: what a job counts goes on in a second run, and devices cannot be divided once more.
        results = [self.start(run, count=counted).assert_ok() for run in runs]
        for worker in range(self.workers):
            first, second = (_told(result.outputs[worker]) for result in results)
            assert first, describe(results[0].outputs)
            if first != second:
                return f"worker {worker}\n" + "\n".join(difflib.ndiff(first, second))
        try:
            assert_identical(*map(self.output, runs), self.workers)
        except AssertionError as error:
            return str(error)
        first, second = (_files(self._folder / run) for run in runs)
        return "" if first == second else f"{first} became {second}"


_PROMISED = r"After a preemption: (?:bit-identical|exact if|exact except)"
"""What the log says before the first step that is trained, where nothing speaks against it for certain."""


def parameters(
    ways: Iterable[Way], short_form: Mapping[str, tuple[str, ...]] = SHORT_FORM
) -> list[ParameterSet]:
    """Returns every way under every strategy, for pytest: those that are not in the short form are chaos."""
    found = []
    for way in ways:
        missing = [name for name in way.needs if not _is_installed(name)]
        absent = [pytest.mark.skip(reason=f"not installed: {', '.join(missing)}")] if missing else []
        for strategy in way.verdicts:
            assert strategy in STRATEGIES, strategy
            marks = [] if strategy in short_form.get(way.name, ()) else [pytest.mark.chaos]
            found.append(pytest.param(way, strategy, id=f"{way.name}-{strategy}", marks=[*marks, *absent]))
    return found


_is_installed = cache(importlib.util.find_spec)


def steps_of(results: Sequence[ClusterResult], worker: int) -> list[str]:
    lines = [line for result in results for line in result.outputs[worker].splitlines()]
    return [line for line in lines if line.startswith("RAN ")]


def _told(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith(("RAN ", "CALLED "))]


def _files(run: Path) -> list[str]:
    """What the job has written, without what differs between two runs of one program."""
    work = run / "work"
    return sorted(re.sub(r"\d{9,}.*", "", str(path.relative_to(work))) for path in work.rglob("*"))


def _places(results: Sequence[ClusterResult], worker: int) -> list[str]:
    return [" ".join(line.split()[:3]) for line in steps_of(results, worker)]


def _drawn(result: ClusterResult, worker: int) -> int:
    found = re.findall(r"^DRAWN (\d+)", result.outputs[worker], re.MULTILINE)
    assert len(found) == 1, describe(result.outputs)
    return int(found[0])


def _assert_said(result: ClusterResult, pattern: str, *, said: bool = True) -> None:
    found = any(re.search(pattern, output) for output in result.outputs)
    assert found == said, f"{pattern!r} was {'not said' if said else 'said'}\n{describe(result.outputs)}"


def _assert_fails(result: ClusterResult, pattern: str) -> None:
    assert all(code not in (0, PREEMPTED) for code in result.codes), describe(result.outputs)
    assert not steps_of([result], 0), "it trained"
    _assert_said(result, pattern)
