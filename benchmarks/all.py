"""Runs every benchmark, prints all ratios in one table, and writes the figures of docs/performance.md.

With --jax these are the benchmarks on JAX, whose figures stand in a part of the page of their own. The output of
each benchmark is shown as it comes. One that misses its aim or fails is named, and the others still run; the exit
status is then 1.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from figures import FILE, ON_JAX, Ratio, conditions, read, table

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "docs"))

from generated import replaced  # noqa: E402

PAGE = HERE.parent / "docs" / "performance.md"


@dataclass(frozen=True)
class Benchmark:
    """One program, and the arguments of its short form."""

    script: str
    quick: tuple[str, ...]


BENCHMARKS = (
    Benchmark("idle_cost.py", ("--repetitions", "40", "--steps", "200")),
    Benchmark("notice_to_exit.py", ("--workers", "2", "--runs", "1")),
    Benchmark("grace.py", ("--quick",)),
    Benchmark("save.py", ("--megabytes", "16", "--repetitions", "1", "--no-peaks", "--no-aims", "--writers")),
    Benchmark("background_save.py", ("--gb", "0.02", "--repetitions", "1", "--no-aims")),
    Benchmark("gcs.py", ("--quick",)),
    Benchmark("restore_together.py", ("--quick",)),
    Benchmark("resume_cost.py", ("--quick",)),
    Benchmark("snapshot_cost.py", ("--quick",)),
    Benchmark("import_cost.py", ("--runs", "1")),
    Benchmark("first_step.py", ("--runs", "1")),
    Benchmark("input_state.py", ("--quick",)),
    Benchmark("what_is_lost.py", ("--only", "ours", "backup")),
)


BENCHMARKS_ON_JAX = (
    Benchmark("jax_idle.py", ("--repetitions", "20", "--steps", "100")),
    Benchmark("jax_notice.py", ("--runs", "1")),
    Benchmark("jax_save.py", ("--gb", "0.02", "--repetitions", "1", "--no-aims")),
    Benchmark("jax_backlog.py", ("--quick",)),
)


@dataclass(frozen=True)
class Part:
    """A part of the page.

    Attributes:
        benchmarks: What is run for it.
        begin: The mark before its figures.
        end: The mark after them.
        packages: Whose versions to name; none for those of a benchmark on TensorFlow.
    """

    benchmarks: tuple[Benchmark, ...]
    begin: str
    end: str
    packages: tuple[str, ...] = ()


ON_TENSORFLOW = Part(
    BENCHMARKS,
    "<!-- figures: written by benchmarks/all.py; do not edit -->",
    "<!-- figures: end -->",
)
PART_ON_JAX = Part(
    BENCHMARKS_ON_JAX,
    "<!-- figures on JAX: written by benchmarks/all.py --jax; do not edit -->",
    "<!-- figures on JAX: end -->",
    ON_JAX,
)


@dataclass(frozen=True)
class Outcome:
    """The output and the ratios of one benchmark."""

    script: str
    output: str
    code: int
    ratios: list[Ratio]


def run(benchmark: Benchmark, *, quick: bool) -> Outcome:
    """Runs one benchmark; its output is shown as it comes."""
    command = [sys.executable, str(HERE / benchmark.script), *(benchmark.quick if quick else ())]
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "ratios")
        environment = {**os.environ, FILE: str(told), "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=None, text=True, env=environment
        ) as process:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        return Outcome(benchmark.script, "".join(lines), process.returncode, read(told))


_HEADER = ["ours over the peer's", "peer", "ratio", "better", "from"]


def _rows(outcome: Outcome) -> list[list[str]]:
    return [
        [ratio.what, ratio.against, f"{ratio.ratio:.2f}", ratio.better, outcome.script]
        for ratio in outcome.ratios
    ]


def ratios_table(outcomes: Sequence[Outcome]) -> str:
    """Returns every ratio of every benchmark."""
    return table(_HEADER, [row for outcome in outcomes for row in _rows(outcome)])


def _block(script: str, text: str) -> str:
    return f"<!-- figures of: {script} -->\n```text\n{text.rstrip()}\n```"


def _section(outcome: Outcome) -> str:
    missed = (
        "" if outcome.code == 0 else f"\n\nAn aim was missed, or a run failed: exit status {outcome.code}."
    )
    return f"### {outcome.script}\n\n{_block(outcome.script, outcome.output)}{missed}"


def figures_of(outcomes: Sequence[Outcome], where: str) -> str:
    """Returns all that stands between the marks of the page."""
    ratios = _block("all.py", ratios_table(outcomes))
    return "\n\n".join([f"Measured with {where}.", ratios, *map(_section, outcomes)])


def renewed(figures: str, outcomes: Sequence[Outcome]) -> str:
    """Returns what stands between the marks of the page with the figures of some benchmarks put in anew."""
    head, *sections = _parts(figures)
    new = {outcome.script: outcome for outcome in outcomes}
    shown = [_section(new[name]) if (name := _title(part)) in new else part.rstrip() for part in sections]
    first, rows, last = _ratio_rows(head)
    kept = [row for row in rows if row[-1] not in new]
    order = [_title(part) for part in sections]
    rows = [*kept, *(row for outcome in outcomes for row in _rows(outcome))]
    rows.sort(key=lambda row: order.index(row[-1]))  # Stable: those of one benchmark stay as they are.
    return "\n\n".join([f"{first}{table(_HEADER, rows)}\n{last}".rstrip(), *shown])


def not_shown(figures: str, scripts: Sequence[str]) -> list[str]:
    """Returns those of the benchmarks of which the page shows no figures, so that there are none to renew."""
    shown = {_title(section) for section in _parts(figures)[1:]}
    return [script for script in scripts if script not in shown]


def _parts(figures: str) -> list[str]:
    """Splits figures into what comes first and the section of each benchmark."""
    return re.split(r"^(?=### )", figures, flags=re.MULTILINE)


def _title(section: str) -> str:
    return section.partition("\n")[0].removeprefix("### ").strip()


def _ratio_rows(head: str) -> tuple[str, list[list[str]], str]:
    """Splits what stands before the sections into what comes before the table, its rows, and what comes after."""
    first, lines, last = re.fullmatch(r"(.*```text\n)(.*?)(```.*)", head, re.DOTALL).groups()  # type: ignore[union-attr]
    return first, [re.split(r"\s{2,}", line.strip()) for line in lines.splitlines()[2:]], last


def _shown(part: Part) -> str:
    """What stands between the marks of a part of the page."""
    return PAGE.read_text(encoding="utf-8").partition(part.begin)[2].partition(part.end)[0].strip()


def write_page(part: Part, figures: str) -> None:
    """Writes the figures between the marks of a part of the page."""
    PAGE.write_text(replaced(PAGE, part.begin, part.end, figures), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the short form of each, and no page is written")
    parser.add_argument("--only", nargs="+", metavar="SCRIPT", help="run these alone, and write no page")
    parser.add_argument("--renew", action="store_true", help="with --only: write their figures into the page")
    parser.add_argument(
        "--jax", action="store_true", help="the benchmarks on JAX, and their part of the page"
    )
    options = parser.parse_args(arguments)
    part = PART_ON_JAX if options.jax else ON_TENSORFLOW
    chosen = [one for one in part.benchmarks if not options.only or one.script in options.only]
    if not chosen:
        parser.error(
            f"Expected some of {', '.join(one.script for one in part.benchmarks)}. Received: {options.only}."
        )
    renew = options.renew and options.only and not options.quick
    if renew and (absent := not_shown(_shown(part), [one.script for one in chosen])):
        parser.error(
            f"Expected benchmarks whose figures the page shows. Received: {', '.join(absent)}. Run all of them, "
            "without --only, to show them for the first time."
        )
    where = conditions(*part.packages)
    began = time.monotonic()
    outcomes = []
    for benchmark in chosen:
        print(f"\n=== {benchmark.script}\n", flush=True)
        outcomes.append(run(benchmark, quick=options.quick))
    print(f"\n=== All, in {time.monotonic() - began:.0f} s; {where}\n\n{ratios_table(outcomes)}")
    failed = [outcome.script for outcome in outcomes if outcome.code != 0]
    if failed:
        print(f"\nMissed an aim, or failed: {', '.join(failed)}.")
    if renew:
        write_page(part, renewed(_shown(part), outcomes))
    elif not options.quick and not options.only:
        write_page(part, figures_of(outcomes, where))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
