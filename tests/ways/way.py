"""Ways in which people train, and what is promised for each.

A `Way` is one row of the table in docs/tested-combinations.md and one test for each strategy: `tests.ways.drill` runs
its job undisturbed and preempted, and compares the result with the verdict. The table is written from the same objects
(docs/ways_table.py), so it says what the tests check. Nothing here imports TensorFlow, and the catalogue takes it from
`tests.ways.late`: the table is written without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.ways.run import Run as Run
else:
    Run = Any  # Its module imports TensorFlow.

ONE, MIRRORED, WORKERS = "one", "mirrored", "workers"
STRATEGIES = {
    ONE: "one device",
    MIRRORED: "MirroredStrategy, 2 replicas",
    WORKERS: "MultiWorkerMirroredStrategy, 2 workers",
}

STRIKE = "WAY_STRIKE"
"""The environment variable that holds where a start gets SIGTERM; see `tests.ways.recorder.Recorder`. Of the launcher's
starts, which all have the same variables, one after the other, with semicolons between them."""

PLAIN = "plain"
"""How the name of a run without the PreemptionCallback begins."""

NEXT_RUN = "NEXT RUN"
"""The line between the outputs of two runs in one process."""


@dataclass(frozen=True)
class Exact:
    """The same bits as undisturbed; with a condition, which the job meets and another way breaks.

    Attributes:
        condition: What the user has to ensure, as the end of "exact if ...".
        promised: Whether the log promises it. Of a training loop of one's own it promises nothing: what belongs to it
            is for its program to know.
    """

    condition: str | None = None
    promised: bool = True


@dataclass(frozen=True)
class Warned:
    """Continues, not exactly, and the log says so before the first step that it trains.

    Attributes:
        reason: Why, as the end of "not exact: ...".
        match: A regular expression that a line of the log has.
        at_restart: Whether the log says so only when the run continues.
        at_once: Whether the log says so only when that which speaks against it happens. Otherwise "bit-identical" is
            never said.
    """

    reason: str
    match: str
    at_restart: bool = False
    at_once: bool = False


@dataclass(frozen=True)
class Fails:
    """An error before the first step.

    Attributes:
        reason: Why, as the end of "refused: ..." or "Keras itself fails: ...".
        match: A regular expression that a line of the output has.
    """

    reason: str
    match: str


class Refused(Fails):
    """The package refuses to train this way."""


class KerasFails(Fails):
    """Keras itself cannot train this way, with or without this package; the test runs the job without it."""


Verdict = Exact | Warned | Refused | KerasFails


def everywhere(verdict: Verdict) -> Mapping[str, Verdict]:
    """Returns one verdict for every strategy."""
    return dict.fromkeys(STRATEGIES, verdict)


@dataclass(frozen=True)
class Way:
    """One way to train.

    Attributes:
        name: The test's name: lower case, with dashes.
        shown: What the table calls it.
        job: Trains; it is called in a process of its own, once for each start.
        verdicts: What is promised, by strategy; a strategy that is not there does not apply. Unless it is said, the
            same bits under every strategy.
        strikes: Where each start but the last gets SIGTERM, see `tests.ways.recorder.Recorder`; "batch 9" is the
            tenth step that the process begins.
        drawn: The most batches that a start draws beside those that it trains on or validates with: under a strategy,
            Keras looks at one before each fit and each validation. None where batches are drawn again.
        needs: Modules that the job imports and that only an environment of `make versions` has; without them the test
            is skipped.
    """

    name: str
    shown: str
    job: Callable[[Run], None] = field(repr=False)
    verdicts: Mapping[str, Verdict] = field(default_factory=lambda: everywhere(Exact()))
    strikes: tuple[str, ...] = ("batch 9",)
    drawn: int | None = None
    needs: tuple[str, ...] = ()
