"""``keras-preempt report`` on runs that never were, in directories and in a bucket."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.layout import RUN
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.cli.main import main
from keras_preempt.report import events
from keras_preempt.testing import FakeGcs
from tests.report.story import Story

Made = Callable[..., str]


def preempted() -> Story:
    story = Story(2).begin().train(9, 9.0).save().train(5, 5.0).preempt().pause(2.0)
    return story.begin(restored=15).train(5, 5.0).finish()


def write(directory: str, story: Story, run: bytes | None = None) -> str:
    """Makes the directory of a run that has told a story."""
    body = {"format": 1, "run_id": "story", "model": []}
    store = open_store(directory)
    store.create(RUN, documents.encode(body) if run is None else run)
    logs: dict[str, bytes] = {}
    for event in story.events:
        told = {
            key: value
            for key, value in event.items()
            if key not in ("event", "time", "member", "incarnation")
        }
        number, member = event["incarnation"], event["member"]
        launcher = event["event"] == "gone"
        name = events.launcher_log_name(number) if launcher else events.log_name(number, member)
        logs[name] = logs.get(name, b"") + events.line(event["event"], event["time"], member, **told)
    for name, data in logs.items():
        segment = (
            name.replace(".jsonl", "-0001.jsonl") if "gs://" in directory and "launcher" not in name else name
        )
        store.create(segment, data)
    store.close()
    return directory


@pytest.fixture(params=["directory", "bucket"])
def made(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    if request.param == "directory":
        yield lambda *arguments: write(str(tmp_path / "run"), *arguments)
        return
    with FakeGcs() as gcs:
        for name, value in gcs.environment().items():
            monkeypatch.setenv(name, value)
        yield lambda *arguments: write("gs://bucket/run", *arguments)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["report", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> str:
    assert main(["report", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_everything_that_matters_is_printed(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, made(preempted()))
    first, *rest = out.splitlines()
    assert first.endswith("run: finished at step 21 after 2 starts of 2 workers")
    assert "steps: 21 run, 21 kept, 0 lost" in rest
    assert "preempted: SIGTERM to w0; SIGTERM to w1; saved at step 15" in out
    for word in (
        "start-up",
        "compile",
        "restore",
        "replay",
        "hold",
        "save",
        "leave",
        "idle",
        "goodput",
        "wall",
    ):
        assert f"\n{word}" in out
    assert "What is missing" not in out
    assert "Saves: 3 checkpoints" in out


def test_json_holds_all_and_adds_up(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(printed(capsys, made(preempted()), "--json"))
    assert (told["state"], told["step"], told["steps_lost"], told["steps_lost_exactly"]) == (
        "finished",
        21,
        0,
        True,
    )
    assert [start["end"] for start in told["starts"]] == ["preempted", "finished"]
    for worker in told["workers"]:
        assert sum(worker["seconds"].values()) == pytest.approx(worker["wall"])
        assert worker["goodput"] == pytest.approx(worker["useful"] / worker["wall"])
    assert told["missing"] == []


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


def test_the_page_stands_alone_and_its_picture_is_well_formed(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.html"
    file.write_text("of last week")
    assert f"The page is {file}" in printed(capsys, made(preempted()), "--html", str(file))
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


def test_what_stands_in_events_is_shown_as_text_and_is_never_markup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "<script>alert(1)</script>\x1b[31m\n&\"'"
    story = Story().begin().train(9, 9.0).fail(hostile)
    for event in story.events:
        event.update({key: hostile for key in ("checkpoint", "source", "attempt") if key in event})
        event.update(process={"machine": hostile}, versions={hostile: hostile})
    story.tell("notice", source=hostile, reason=hostile, received_at=story.at)
    directory = write(str(tmp_path / "run"), story)
    out = printed(capsys, directory, "--html", str(tmp_path / "out.html"))
    assert "\x1b" not in out
    page = Page((tmp_path / "out.html").read_text())
    assert "script" not in page.tags
    assert "<script>alert(1)</script>" in page.text
    assert "\x1b" not in page.text


def test_half_written_and_damaged_files_are_named_and_the_rest_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write(str(tmp_path / "run"), preempted(), b"not what was written")
    log = tmp_path / "run" / events.log_name(2, 1)
    log.write_bytes(log.read_bytes()[:-30])
    other = tmp_path / "run" / events.log_name(1, 0)
    lines = other.read_bytes().splitlines(keepends=True)
    other.write_bytes(b"".join([lines[0], b"\0" * 40 + b"\n", *lines[2:]]))
    out = printed(capsys, directory)
    missing = out.partition("What is missing:\n")[2]
    assert "run.json is damaged" in missing
    assert f"{events.log_name(2, 1)}: its last line is half-written" in missing
    assert f"{events.log_name(1, 0)}: 1 of {len(lines)} lines cannot be read, the first is line 2" in missing
    assert "start 1, w0: events are missing, so 2.0 s cannot be told" in missing
    assert "finished at step 21" in out


def test_a_run_without_an_end_can_be_declared_over(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    directory = made(Story(launcher=False).begin().train(9, 9.0).save())
    assert "w0 told no end" in printed(capsys, directory)
    out = printed(capsys, directory, "--over")
    assert "ended without a word" in out
    assert "unknown lost" in out


def test_a_bucket_that_lost_a_segment_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeGcs() as gcs:
        for name, value in gcs.environment().items():
            monkeypatch.setenv(name, value)
        directory = write("gs://bucket/run", preempted())
        store = open_store(directory)
        store.create("events/00001.w00000-0003.jsonl", b"")
        store.close()
        assert "1 of its first 3 segments are missing" in printed(capsys, directory)
        assert "gs://other" in refused(capsys, "gs://other/run", code=3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "which does not exist"),
        (lambda folder: folder.mkdir(), "which is empty"),
        (lambda folder: folder.write_text(""), "which is no directory"),
        (lambda folder: (folder / "more").mkdir(parents=True), "with other files in it"),
        (lambda folder: write(str(folder / "preempted"), Story()), "which holds runs"),
        (lambda folder: write(str(folder), Story()), "Expected events of a run"),
        (lambda folder: write(str(folder), Story(), _newer()), "format version 99"),
    ],
)
def test_a_directory_that_cannot_be_reported_on_is_one_line_with_a_cure(
    make: Callable[[Path], Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "it")
    line = refused(capsys, str(tmp_path / "it"), code=3)
    assert message in line
    assert "Received: " in line


def _newer() -> bytes:
    return documents.encode({"format": 99, "run_id": "story", "model": []})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_without_permission_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = Path(write(str(tmp_path / "run"), preempted()))
    (directory / "events").chmod(0)
    try:
        assert "Permission denied" in refused(capsys, str(directory), code=3)
    finally:
        (directory / "events").chmod(0o700)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'DIR'"),
        (["s3://bucket/run"], "'s3://' is not known"),
        (["gs:/bucket/run"], "a slash is missing"),
        (["run", "--html"], "requires an argument"),
        (["run", "--svg"], "No such option"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, *arguments, code=2)


def test_a_page_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write(str(tmp_path / "run"), preempted())
    for file in (tmp_path / "no" / "out.html", tmp_path):
        assert "Expected a file to write the page to" in refused(
            capsys, directory, "--html", str(file), code=2
        )
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_report_needs_no_tensorflow() -> None:
    program = (
        "import sys, keras_preempt.cli.report; print('tensorflow' in sys.modules, 'keras' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False False\n", done.stderr
