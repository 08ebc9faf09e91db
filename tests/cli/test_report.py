"""``keras-preempt report`` on runs that never were, in directories and in a bucket."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from prometheus_client.parser import text_string_to_metric_families

from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.layout import RUN
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.report import events
from keras_preempt.testing import FakeGcs
from tests.cli import saved_run
from tests.cli.saved_run import Run
from tests.report.story import (
    COMPILING,
    DYING,
    HOLDING,
    LEAVING,
    READING,
    REPLAYING,
    RESTORING,
    SAVING,
    STARTING,
    Story,
)

Made = Callable[..., str]


def preempted() -> Story:
    story = Story(2).begin().train(9, 9.0).save().train(5, 5.0).preempt().pause(2.0)
    return story.begin(restored=15).train(5, 5.0).finish()


LOST = HOLDING + SAVING + LEAVING + DYING + 2.0 + STARTING + READING + RESTORING + REPLAYING + COMPILING


def logs_of(story: Story) -> dict[str, bytes]:
    """What a run that has told a story has in its files."""
    logs: dict[str, bytes] = {}
    for event in story.events:
        known = ("event", "time", "member", "incarnation")
        told = {key: value for key, value in event.items() if key not in known}
        number, member = event["incarnation"], event["member"]
        launcher = event["event"] == "gone"
        name = events.log_name(number, None if launcher else member)
        logs[name] = logs.get(name, b"") + events.line(event["event"], event["time"], member, **told)
    return logs


def write(directory: str, story: Story, run: bytes | None = None) -> str:
    """Makes the directory of a run that has told a story."""
    body = {"format": 1, "run_id": "story", "model": []}
    store = open_store(directory)
    store.create(RUN, documents.encode_document(body) if run is None else run)
    for name, data in logs_of(story).items():
        segmented = "gs://" in directory and "launcher" not in name
        store.create(name.replace(".jsonl", "-0001.jsonl") if segmented else name, data)
    store.close()
    return directory


@pytest.fixture(params=["directory", "bucket"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    if request.param == "directory":
        return functools.partial(write, str(tmp_path / "run"))
    request.getfixturevalue("bucket")
    return functools.partial(write, "gs://bucket/run")


def printed(run: Run, *arguments: object) -> str:
    out, err = run("report", *arguments)
    assert err == ""
    return out


def refused(run: Run, *arguments: object, code: int = 3) -> str:
    out, err = run("report", *arguments, code=code)
    assert (out, err.count("\n")) == ("", 1)
    return err


def test_everything_that_matters_is_printed_and_json_holds_all_and_adds_up(made: Made, run: Run) -> None:
    directory = made(preempted())
    out = printed(run, directory)
    first, *rest = out.splitlines()
    assert first.endswith("run: finished at step 21 after 2 starts of 2 workers")
    assert "steps: 21 run, 21 kept, 0 lost" in rest
    assert "preempted: SIGTERM to w0; SIGTERM to w1; saved at step 15" in out
    for words in (
        "goodput: ",
        "badput: start ",
        "productive time ",
        "start ",
        "  start-up ",
        "restore ",
        "  replay ",
    ):
        assert f"\n{words}" in out
    for words in ("save ", "  hold ", "exit ", "waiting for machines ", "wall time "):
        assert f"\n{words}" in out
    assert "What is missing" not in out
    assert "Saves: 3 checkpoints" in out
    told = json.loads(printed(run, directory, "--json"))
    assert (told["state"], told["step"]) == ("finished", 21)
    assert (told["steps_lost"], told["steps_lost_exactly"]) == (0, True)
    assert [start["end"] for start in told["starts"]] == ["preempted", "finished"]
    for worker in told["workers"]:
        assert sum(worker["seconds"].values()) == pytest.approx(worker["wall"])
        assert worker["goodput"] == worker["useful"] / worker["wall"]
        assert worker["useful"] + sum(worker["badput_seconds"].values()) == worker["wall"]
    assert told["productive_seconds"] + sum(told["badput_seconds"].values()) == told["seconds"]
    # From the last step before to the first one after: as long as it lasts for each of the two workers.
    assert [start["seconds_lost"] for start in told["starts"]] == [LOST, 0.0]
    assert told["missing"] == []


def test_programs_know_the_time_without_a_recorded_end_as_untold(made: Made, run: Run) -> None:
    story = Story(launcher=False).begin().train(9, 9.0).save().train(5, 5.0)
    directory = made(story.pause(3.0).begin(restored=10).finish())
    assert "unreported" in printed(run, directory)
    (worker,) = json.loads(printed(run, directory, "--json"))["workers"]
    assert "untold" in worker["seconds"]
    assert "untold" in [span["what"] for span in worker["spans"]]
    assert sum(worker["seconds"].values()) == pytest.approx(worker["wall"])


def test_a_start_whose_clock_is_behind_is_reported_with_the_others(made: Made, run: Run) -> None:
    told = json.loads(printed(run, made(preempted().clock_behind(120.0, 2)), "--json"))
    assert (told["state"], told["step"], told["steps_lost"]) == ("finished", 21, 0)
    assert [start["end"] for start in told["starts"]] == ["preempted", "finished"]
    assert len(told["missing"]) == 2
    assert "clock of its machine" in told["missing"][0]


def test_committed_checkpoints_count_where_no_event_tells_of_them(tmp_path: Path, run: Run) -> None:
    store = saved_run.begin(tmp_path / "run")
    story = Story(2).begin().train(9, 9.0)
    for name, data in logs_of(story).items():  # The disk was full then, and full no more.
        store.create(name, data)
    saved_run.save(store, 895)
    told = json.loads(printed(run, str(tmp_path / "run"), "--over", "--json"))
    assert (told["step"], told["steps_run"]) == (895, 895)
    assert [save["step"] for save in told["saves"]] == [895]
    assert "the commits of 1 checkpoint, the first of step 895" in told["missing"][0]
    saved_run.save(store, 900, round=1, finished=True)
    told = json.loads(printed(run, str(tmp_path / "run"), "--over", "--json"))
    assert (told["step"], told["state"]) == (900, "finished")


class Page(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_stands_alone_and_its_picture_is_well_formed(made: Made, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "out.html"
    file.write_text("of last week")
    assert f"The page is {file}" in printed(run, made(preempted()), "--html", str(file))
    text = file.read_text()
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "form"}.intersection(page.tags)
    assert not {name for name, _ in page.attributes if name.startswith("on") or name in ("src", "style")}
    places = {value for name, value in page.attributes if name == "id"}
    assert {value for name, value in page.attributes if name == "href"} <= {f"#{place}" for place in places}
    assert "//" not in text.replace("gs://bucket", "")  # It loads nothing from anywhere.
    assert "prefers-color-scheme: dark" in text
    for shape in ("wide", "narrow"):
        begin = text.index(f'<svg class="timeline {shape}"')
        picture = ElementTree.fromstring(text[begin : text.index("</svg>", begin) + 6])
        spans = [rect.get("class") for rect in picture.iter("rect") if rect.find("title") is not None]
        assert {"train", "compile", "start-up", "restore", "save", "leave", "idle"} <= set(spans)
        assert {"hold pause", "replay pause"} <= set(spans), "however short they are"
        assert len(list(picture.iter("circle"))) == 3
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("run", "out.html")] == []


def test_what_stands_in_events_is_shown_as_text_and_is_never_markup(tmp_path: Path, run: Run) -> None:
    hostile = "<script>alert(1)</script>\x1b[31m\n&\"'"
    story = Story().begin().train(9, 9.0).fail(hostile)
    for event in story.events:
        event.update({key: hostile for key in ("checkpoint", "source", "attempt") if key in event})
        event.update(process={"machine": hostile}, versions={hostile: hostile})
    story.tell("notice", source=hostile, reason=hostile, received_at=story.at)
    directory = write(str(tmp_path / "run"), story)
    out = printed(run, directory, "--html", str(tmp_path / "out.html"))
    assert "\x1b" not in out
    page = Page((tmp_path / "out.html").read_text())
    assert "script" not in page.tags
    assert "<script>alert(1)</script>" in page.text
    assert "\x1b" not in page.text


def test_half_written_and_damaged_files_are_named_and_the_rest_is_reported(tmp_path: Path, run: Run) -> None:
    directory = write(str(tmp_path / "run"), preempted(), b"not what was written")
    log = tmp_path / "run" / events.log_name(2, 1)
    log.write_bytes(log.read_bytes()[:-30])
    other = tmp_path / "run" / events.log_name(1, 0)
    lines = other.read_bytes().splitlines(keepends=True)
    other.write_bytes(b"".join([lines[0], b"\0" * 40 + b"\n", *lines[2:]]))
    out = printed(run, directory)
    missing = out.partition("What is missing:\n")[2]
    assert "run.json is damaged" in missing
    assert f"{events.log_name(2, 1)}: its last line is half-written" in missing
    assert f"{events.log_name(1, 0)}: 1 of {len(lines)} lines cannot be read, the first is line 2" in missing
    assert "start 1, w0: events are missing, so 2.0 s are not accounted for" in missing
    assert "finished at step 21" in out


@pytest.mark.parametrize("step", [[15], {"15": 15}, "15", None])
def test_a_commit_whose_step_is_no_number_does_not_count(step: object, tmp_path: Path, run: Run) -> None:
    directory = write(str(tmp_path / "run"), preempted())
    expected = printed(run, directory)
    log = tmp_path / "run" / events.log_name(2, 0)
    moment = json.loads(log.read_bytes().splitlines()[-1])["time"]
    log.write_bytes(log.read_bytes() + events.line("commit", moment, 0, attempt="odd", step=step))
    assert printed(run, directory) == expected


@pytest.mark.parametrize(("ahead", "lost"), [(None, "unknown lost"), (20, "at most 20 lost")])
def test_a_run_without_an_end_can_be_declared_over(
    ahead: int | None, lost: str, made: Made, run: Run
) -> None:
    directory = made(Story(launcher=False, ahead=ahead).begin().train(9, 9.0).save())
    assert "w0: no end is recorded" in printed(run, directory)
    out = printed(run, directory, "--over")
    assert "ended without reporting" in out
    told = json.loads(printed(run, directory, "--over", "--json"))
    assert (
        told["state"] == told["starts"][-1]["end"] == "ended without a word"
    )  # Programs know it by this name.
    assert lost in out


def test_a_bucket_that_lost_a_segment_says_so(bucket: FakeGcs, run: Run) -> None:
    directory = write("gs://bucket/run", preempted())
    store = open_store(directory)
    store.create("events/00001.w00000-0003.jsonl", b"")
    store.close()
    assert "1 of its first 3 segments are missing" in printed(run, directory)
    assert "gs://other" in refused(run, "gs://other/run")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "Expected events of a run"),
        (documents.encode_document({"format": 99, "run_id": "story", "model": []}), "format version 99"),
    ],
)
def test_a_run_that_cannot_be_reported_on_is_one_line_with_a_cure(
    document: bytes | None, message: str, tmp_path: Path, run: Run
) -> None:
    line = refused(run, write(str(tmp_path / "run"), Story(), document))
    assert message in line
    assert "Received: " in line


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path: Path, run: Run) -> None:
    directory = write(str(tmp_path / "run"), preempted())
    (tmp_path / "taken").mkdir()
    for file in (tmp_path / "no" / "out.html", tmp_path / "taken"):
        error = refused(run, directory, "--html", file, code=2)
        assert "Expected a file to write the page to" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "taken"]


MANY = 40_000


def test_the_report_of_a_long_run_takes_a_few_times_as_long_as_to_parse_its_events(
    tmp_path: Path, run: Run
) -> None:
    """On any machine: 200,000 lines that take 1.5 s to parse are reported in less than 15, and not in 20 or more."""
    story = Story(1).begin().train(9, 9.0).save()
    directory = Path(write(str(tmp_path / "run"), story))
    log = directory / events.log_name(1, 0)
    at = max(event["time"] for event in story.events)
    with log.open("ab") as out:
        for number in range(1, MANY // 2):
            told = {"attempt": f"00001-{number:05d}", "step": 9 + 10 * number}
            at += 1.0
            times = {"began_at": at - 0.5, "ready_at": at - 0.4, "background": True}
            out.write(events.line("save", at, 0, seconds=0.1, **told, **times))
            passed = [[at - 0.4, told["step"] - 4], [at - 0.2, told["step"] - 2]]
            out.write(events.line("commit", at + 0.1, 0, seconds=0.1, missing=[], **told, passed=passed))
    lines = log.read_bytes().splitlines()
    began = time.process_time()
    parsed = [json.loads(line) for line in lines]
    parsing = time.process_time() - began
    assert len(parsed) >= MANY
    began = time.process_time()
    out, _ = run("report", directory, "--over", "--json")
    assert (time.process_time() - began) / parsing < 9
    assert len(json.loads(out)["saves"]) == MANY // 2


# -- Prometheus -----------------------------------------------------------------------------------------


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


def test_prometheus_gets_the_figures_of_the_report(made: Made, run: Run) -> None:
    directory = made(preempted())
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
