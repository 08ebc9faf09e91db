"""Runs every benchmark, prints all ratios in one table, and writes these and the figures into benchmarks/figures.md.

The summary of docs/performance.md is written from that page. With --jax these are the benchmarks on JAX, with --torch
those on torch, which have parts of the page of their own. The output of each benchmark is shown as it comes. One that
misses its aim or fails is named, and the others still run; the exit status is then 1.
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

from figures import FILE, ON_JAX, ON_TORCH, Ratio, conditions, read, table

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "docs"))

from generated import replaced  # noqa: E402

PAGE = HERE / "figures.md"


@dataclass(frozen=True)
class Benchmark:
    """One program, the arguments of its short form, and those of both forms."""

    script: str
    quick: tuple[str, ...]
    always: tuple[str, ...] = ()


BENCHMARKS = (
    Benchmark("idle_cost.py", ("--repetitions", "40", "--steps", "200")),
    Benchmark("notice_to_exit.py", ("--workers", "2", "--runs", "1")),
    Benchmark("grace.py", ("--quick",)),
    Benchmark("save.py", ("--megabytes", "16", "--repetitions", "1", "--no-peaks", "--no-aims", "--writers")),
    Benchmark("background_save.py", ("--gb", "0.02", "--repetitions", "1", "--no-aims")),
    Benchmark("buckets.py", ("--quick",)),
    Benchmark("restore_together.py", ("--quick",)),
    Benchmark("many_workers.py", ("--quick",)),
    Benchmark("resume_cost.py", ("--quick",)),
    Benchmark("snapshot_cost.py", ("--quick",)),
    Benchmark("import_cost.py", ("--runs", "1")),
    Benchmark("first_step.py", ("--runs", "1")),
    Benchmark("input_state.py", ("--quick",)),
    Benchmark("what_is_lost.py", ("--only", "ours", "backup")),
    Benchmark("no_notice.py", ("--quick",)),
    Benchmark("restart.py", ("--quick",)),
    Benchmark("saved_trace.py", ("--runs", "1")),
)


BENCHMARKS_ON_JAX = (
    Benchmark("jax_idle.py", ("--repetitions", "20", "--steps", "100")),
    Benchmark("jax_notice.py", ("--runs", "1")),
    Benchmark("jax_save.py", ("--gb", "0.02", "--repetitions", "1", "--no-aims")),
    Benchmark("jax_backlog.py", ("--quick",)),
)

BENCHMARKS_ON_TORCH = (
    Benchmark("torch_idle.py", ("--repetitions", "20", "--steps", "100")),
    Benchmark("first_step.py", ("--runs", "1"), ("--backend", "torch")),
)


@dataclass(frozen=True)
class Part:
    """What the page has of some benchmarks: a table of their ratios, and further down the output of each.

    Attributes:
        benchmarks: What is run for it.
        name: How the marks around its figures begin, and those around its ratios end.
        option: How it is written.
        packages: Whose versions to name; none for those of a benchmark on TensorFlow.
    """

    benchmarks: tuple[Benchmark, ...]
    name: str = ""
    option: str = ""
    packages: tuple[str, ...] = ()

    def marks(self, what: str) -> tuple[str, str]:
        """Returns the lines around the "ratios" or the "figures" on the page."""
        begin = f"<!-- {what}{self.name}: written by benchmarks/all.py{self.option}; do not edit -->"
        return begin, f"<!-- {what}{self.name}: end -->"


ON_TENSORFLOW = Part(BENCHMARKS)
PART_ON_JAX = Part(BENCHMARKS_ON_JAX, " on JAX", " --jax", ON_JAX)
PART_ON_TORCH = Part(BENCHMARKS_ON_TORCH, " on torch", " --torch", ON_TORCH)


@dataclass(frozen=True)
class Outcome:
    """The output and the ratios of one benchmark."""

    script: str
    output: str
    code: int
    ratios: list[Ratio]


def run(benchmark: Benchmark, *, quick: bool) -> Outcome:
    """Runs one benchmark; its output is shown as it comes."""
    command = [
        sys.executable,
        str(HERE / benchmark.script),
        *benchmark.always,
        *(benchmark.quick if quick else ()),
    ]
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


def ratios_table(outcomes: Sequence[Outcome]) -> str:
    """Returns every ratio of every benchmark, for a terminal."""
    rows = [
        [ratio.what, ratio.against, f"{ratio.ratio:.2f}", ratio.better, outcome.script]
        for outcome in outcomes
        for ratio in outcome.ratios
    ]
    return table(["ours over the peer's", "peer", "ratio", "better", "from"], rows)


def _section(outcome: Outcome) -> str:
    missed = (
        "" if outcome.code == 0 else f"\n\nAn aim was missed, or a run failed: exit status {outcome.code}."
    )
    block = f"<!-- figures of: {outcome.script} -->\n```text\n{outcome.output.rstrip()}\n```"
    folded = f"<details markdown>\n<summary>What it printed</summary>\n\n{block}\n\n</details>"
    return f"### {outcome.script}\n\n{folded}{missed}"


_HEADER = "| ours over the peer's | ratio | better |\n|---|---|---|"
_GROUP = "| **`{}`** | | |"
"""The row above the ratios of a benchmark. The table is so narrow that it stays one on a phone."""


def _rows(outcome: Outcome) -> str:
    """Returns the ratios of one benchmark as rows of the page's table; empty if it has none."""
    if not outcome.ratios:
        return ""
    rows = [
        f"| {ratio.what}, over {ratio.against} | {ratio.ratio:.2f} | {ratio.better} |"
        for ratio in outcome.ratios
    ]
    return "\n".join([_GROUP.format(outcome.script), *rows])


def ratios_of(outcomes: Sequence[Outcome], where: str) -> str:
    """Returns the table of ratios of the page."""
    return "\n".join([f"Measured with {where}.", "", _HEADER, *filter(None, map(_rows, outcomes))])


def figures_of(outcomes: Sequence[Outcome]) -> str:
    """Returns the output of all benchmarks, for the page."""
    return "\n\n".join(map(_section, outcomes))


def renewed(shown: str, outcomes: Sequence[Outcome]) -> str:
    """Returns figures or ratios of the page with those of some benchmarks put in anew, or for the first time."""
    head, *parts = _parts(shown)
    write = _section if parts and parts[0].startswith("### ") else _rows
    written = {_title(part): part for part in parts}
    written |= {outcome.script: f"{write(outcome)}\n\n" for outcome in outcomes}
    renewed = filter(str.strip, written.values())
    between = "\n\n" if write is _section else "\n"
    return between.join([head.rstrip(), *(part.rstrip() for part in renewed)]).strip()


def _parts(shown: str) -> list[str]:
    """Splits figures or ratios into what comes first and the part of each benchmark."""
    return re.split(r"^(?=### |\| \*\*`)", shown, flags=re.MULTILINE)


def _title(part: str) -> str:
    return part.partition("\n")[0].strip("#|*` ")


def _shown(part: Part, what: str) -> str:
    """What stands between the marks of a part of the page."""
    begin, end = part.marks(what)
    return PAGE.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0].strip()


def write_page(part: Part, ratios: str, figures: str) -> None:
    """Writes the ratios and the figures of a part of the page."""
    for what, content in (("ratios", ratios), ("figures", figures)):
        PAGE.write_text(replaced(PAGE, *part.marks(what), content), encoding="utf-8")
    subprocess.run([sys.executable, str(HERE.parent / "docs" / "ratios_table.py")], check=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the short form of each, and no page is written")
    parser.add_argument("--only", nargs="+", metavar="SCRIPT", help="run these alone, and write no page")
    parser.add_argument("--renew", action="store_true", help="with --only: write their figures into the page")
    backend = parser.add_mutually_exclusive_group()
    for name, part in (("jax", PART_ON_JAX), ("torch", PART_ON_TORCH)):
        help_ = f"the benchmarks{part.name}, and their part of the page"
        backend.add_argument(f"--{name}", dest="part", action="store_const", const=part, help=help_)
    options = parser.parse_args(arguments)
    part = options.part or ON_TENSORFLOW
    chosen = [one for one in part.benchmarks if not options.only or one.script in options.only]
    if not chosen:
        parser.error(
            f"Expected some of {', '.join(one.script for one in part.benchmarks)}. Received: {options.only}."
        )
    renew = options.renew and options.only and not options.quick
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
        write_page(part, *(renewed(_shown(part, what), outcomes) for what in ("ratios", "figures")))
    elif not options.quick and not options.only:
        write_page(part, ratios_of(outcomes, where), figures_of(outcomes))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
