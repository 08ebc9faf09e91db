"""Runs that never were, in directories and buckets, and the report of them on the command line."""

from __future__ import annotations

from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.layout import RUN
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.report import events
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


def preempted() -> Story:
    story = Story(2).begin().train(9, 9.0).save().train(5, 5.0).preempt().pause(2.0)
    return story.begin(restored=15).train(5, 5.0).finish()


#: Seconds that the preemption of `preempted` costs each worker.
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


def printed(run: Run, *arguments: object) -> str:
    out, err = run("report", *arguments)
    assert err == ""
    return out


def refused(run: Run, *arguments: object, code: int = 3) -> str:
    out, err = run("report", *arguments, code=code)
    assert (out, err.count("\n")) == ("", 1)
    return err
