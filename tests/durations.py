"""How long tests take: pytest's plugin that measures, the file that keeps, and the command that shows it.

``python -m tests.durations`` prints the fifty files that take longest, what the stages take, and the steps of .ci/run.
``python -m tests.durations NAME SECONDS`` keeps what a step took; .ci/run calls that.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

KEPT = Path(__file__).parents[1] / ".ci" / "durations.json"
_SHOWN = 50


class Measured:
    """Measures one run of pytest, in the process that the results come to.

    Args:
        stage: The number of its stage.
        report: The file to write at its end.
    """

    def __init__(self, stage: int, report: Path) -> None:
        self._stage = stage
        self._report = report
        self._began = self._collected = time.monotonic()
        self._outcomes: Counter[str] = Counter()
        #: By file and test, whatever its parameters: how many were run, and their seconds, setup and teardown apart.
        self._tests: dict[str, dict[str, list[float]]] = defaultdict(dict)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        self._collected = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._outcomes["failed" if report.when != "call" and report.failed else report.outcome] += 1
        file, _, name = report.nodeid.partition("::")
        taken = self._tests[file].setdefault(name.partition("[")[0], [0, 0.0, 0.0])
        taken[0] += report.when == "setup"
        taken[1 if report.when == "call" else 2] += report.duration

    def pytest_sessionfinish(self) -> None:
        rounded = {
            file: {
                name: [number, round(call, 2), round(around, 2)]
                for name, (number, call, around) in tests.items()
            }
            for file, tests in sorted(self._tests.items())
        }
        found = {
            "stage": self._stage,
            "seconds": round(time.monotonic() - self._began, 1),
            "collection": round(self._collected - self._began, 1),
            "outcomes": self._outcomes,
            "tests": rounded,
        }
        self._report.write_text(json.dumps(found))


def load() -> dict[str, Any]:
    """Returns what is kept: ``stages``, ``steps``, and ``tests`` by file and name."""
    if not KEPT.exists():
        return {"stages": {}, "steps": {}, "tests": {}}
    found: dict[str, Any] = json.loads(KEPT.read_text())
    return found


def seconds_of(tests: dict[str, list[float]]) -> float:
    """Returns what the tests of a file take together, with set-up."""
    return sum(call + around for _, call, around in tests.values())


def renew(reports: Sequence[dict[str, Any]]) -> None:
    """Keeps what the stages of one whole run took."""
    kept = load()
    kept["stages"] = {str(each["stage"] + 1): [each["seconds"], each["collection"]] for each in reports}
    kept["tests"] = {file: tests for each in reports for file, tests in each["tests"].items()}
    _save(kept)


def _save(kept: dict[str, Any]) -> None:
    # A line for each file of tests.
    lines = ",\n".join(
        f"{json.dumps(file)}: {json.dumps(tests)}" for file, tests in sorted(kept["tests"].items())
    )
    head = "".join(f'"{name}": {json.dumps(kept[name])},\n' for name in ("stages", "steps"))
    KEPT.write_text(f'{{\n{head}"tests": {{\n{lines}\n}}\n}}\n')


def show() -> None:
    """Prints the files that take longest, the stages and the steps."""
    kept = load()
    files = sorted(((seconds_of(tests), file) for file, tests in kept["tests"].items()), reverse=True)
    for seconds, file in files[:_SHOWN]:
        tests = kept["tests"][file]
        longest = max(tests, key=lambda name: sum(tests[name][1:]))
        number = sum(int(taken[0]) for taken in tests.values())
        print(f"{seconds:7.1f} s {number:5d} tests  {file}: {longest} {sum(tests[longest][1:]):.1f} s")
    print(f"{sum(seconds for seconds, _ in files):7.1f} s in {len(files)} files")
    for number, (seconds, collection) in kept["stages"].items():
        print(f"{seconds:7.1f} s for stage {number}, {collection:.1f} s of it until all tests were collected")
    for step, seconds in kept["steps"].items():
        print(f"{seconds:7.1f} s for {step} of .ci/run")


def main(arguments: Sequence[str]) -> None:
    """The command."""
    if not arguments:
        show()
        return
    step, seconds = arguments
    kept = load()
    kept["steps"][step] = float(seconds)
    _save(kept)


if __name__ == "__main__":
    main(sys.argv[1:])
