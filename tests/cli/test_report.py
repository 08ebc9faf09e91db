"""``keras-preempt report`` on runs that never were, in directories and in a bucket."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.report import events
from keras_preempt.testing import FakeGcs
from tests.cli import saved_run
from tests.cli.reported import LOST, logs_of, preempted, printed, refused, write
from tests.cli.saved_run import Run
from tests.report.story import Story

Made = Callable[..., str]


@pytest.fixture(params=["directory", "bucket"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    if request.param == "directory":
        return functools.partial(write, str(tmp_path / "run"))
    request.getfixturevalue("bucket")
    return functools.partial(write, "gs://bucket/run")


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
