"""``keras-preempt report --prometheus``: what Prometheus' own parser reads of it, and who may read the file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from keras_preempt.testing import FakeGcs
from tests.cli.reported import LOST, preempted, printed, refused, write
from tests.cli.saved_run import Run


def figures(text: str) -> dict[tuple[str, str], float]:
    """What Prometheus' own parser reads: values by name and the label beside `run`, which all have alike."""
    found: dict[tuple[str, str], float] = {}
    runs = set()
    for family in text_string_to_metric_families(text):
        assert family.documentation
        assert family.type in ("counter", "gauge")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
            runs.add(sample.labels.pop("run"))
            found[sample.name.removeprefix("keras_preempt_"), "".join(sample.labels.values())] = sample.value
    assert len(runs) == 1
    return {**found, ("run", runs.pop()): 1.0}


def test_prometheus_gets_the_figures_of_the_report(bucket: FakeGcs, run: Run) -> None:
    directory = write("gs://bucket/run", preempted())
    text = printed(run, directory, "--prometheus")
    assert text == printed(run, directory, "--prometheus", "-")
    told, found = json.loads(printed(run, directory, "--json")), figures(text)
    assert found["run", directory] == 1.0
    assert found["wall_seconds_total", ""] == told["seconds"]
    assert found["productive_seconds", ""] == told["productive_seconds"]
    badput = {cause: value for (name, cause), value in found.items() if name == "badput_seconds"}
    assert badput == told["badput_seconds"]
    assert found["goodput_ratio", ""] == told["goodput"]
    assert (found["starts_total", ""], found["interruptions_total", "preempted"]) == (2, 1)
    assert (found["restores_total", "directory"], found["restores_total", "memory"]) == (1, 0)
    assert found["interruptions_lost_seconds", ""] == LOST
    assert (found["steps", ""], found["steps_run_total", ""], found["steps_lost", ""]) == (21, 21, 0)
    assert (found["saves_total", ""], found["running", ""], found["workers", ""]) == (3, 0, 2)
    assert found["last_save_timestamp_seconds", ""] == told["saves"][-1]["at"]


def test_the_textfile_collector_gets_a_whole_file_that_it_may_read(tmp_path: Path, run: Run) -> None:
    odd = 'of "mine" \\n\\ \n\udcff'
    directory = write(str(tmp_path / odd), preempted())
    out = tmp_path / "out"
    out.mkdir()
    file = out / "run.prom"
    file.write_text("of last week")
    file.chmod(0o600)
    before = file.stat().st_ino
    mask = os.umask(0o077)
    try:
        assert printed(run, directory, "--prometheus", file) == ""
    finally:
        os.umask(mask)
    assert (file.stat().st_mode & 0o777, os.listdir(out)) == (0o644, ["run.prom"])
    assert file.stat().st_ino != before, "renamed into its place"
    assert figures(file.read_text())["run", str(tmp_path / odd.replace("\udcff", "?"))] == 1.0
    run("report", directory, "--html", tmp_path / "page.html")
    assert "Finished at step 21" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}", "--prometheus", "{run}.txt"], "Expected a FILE that ends in .prom"),
        (["--prometheus", "{run}"], "put --prometheus behind DIR"),
        (["{run}", "--prometheus", "{run}/no/x.prom"], "Expected a file to write the figures to"),
        (["{run}", "--prometheus", "--json"], "Expected --json or --prometheus. Received: both."),
        (["{run}", "--watch", "--prometheus"], "Expected --watch without --prometheus."),
    ],
)
def test_where_figures_cannot_be_written_is_one_line_with_a_cure(
    arguments: list[str], message: str, tmp_path: Path, run: Run
) -> None:
    directory = write(str(tmp_path / "run"), preempted())
    before = sorted(tmp_path.rglob("*"))
    assert message in refused(run, *(each.format(run=directory) for each in arguments), code=2)
    assert sorted(tmp_path.rglob("*")) == before


def test_figures_of_what_is_no_run_are_refused_and_the_file_stays(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "run.prom"
    file.write_text("of last week")
    (tmp_path / "empty").mkdir()
    for directory in (tmp_path / "none", tmp_path / "empty"):
        assert "Received: " in refused(run, directory, "--prometheus", file)
    assert file.read_text() == "of last week"
