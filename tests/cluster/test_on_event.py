"""`on_event` of real fits: every event by its schema, and no delay by a function that is slow or fails."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from keras_preempt import Event, Preempted, TerminationConfig
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.report import delivery
from keras_preempt.report.event import ANY, SCHEMA
from keras_preempt.training.save import requests
from tests.cluster.handled_loop import eight_runs, sigterm
from tests.cluster.small_fit import STEPS, Then, await_, fit

PATIENCE = 240.0
TYPES = {"int": int, "float": (int, float), "str": str, "bool": bool, "list": list, "dict": dict}

pytestmark = pytest.mark.usefixtures("nowhere", "everything_is_given_back")


def assert_follows_the_schema(event: Event) -> None:
    fields = {**ANY, **SCHEMA[event.kind].fields}
    always = {name for name, field in fields.items() if field.always}
    assert always <= set(event.fields) <= set(fields), event
    for name, value in event.fields.items():
        kind, _, rest = fields[name].type.partition(" | ")
        assert (value is None and rest == "None") or isinstance(value, TYPES[kind]), (event.kind, name, value)
    json.dumps(event.to_json())


def test_every_event_of_a_job_comes_as_it_is_in_the_log_and_follows_the_schema(tmp_path: Path) -> None:
    told: list[Event] = []
    directory = tmp_path / "run"

    def ask() -> None:
        requests.make_request(open_store(directory), 2, "here")
        await_(lambda: any(event.kind == "requested" for event in told))

    fit(directory, on_event=told.append, save_every=2, strike=(0, 2))
    fit(directory, on_event=told.append, save_on_request="0.02s", more=[Then((1, 0), ask)])
    with pytest.raises(ZeroDivisionError):
        fit(directory, epochs=4, on_event=told.append, more=[Then((2, 1), lambda: 1 // 0)])
    for event in told:
        assert_follows_the_schema(event)
    logged = [
        json.loads(line)
        for path in sorted(directory.glob("events/*.w00000.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert [(event.kind, event.time, event.worker) for event in told] == [
        (line["event"], line["time"], line["member"]) for line in logged
    ]
    assert {event.start for event in told} <= {1, 2, 3, None}
    kinds = {event.kind for event in told}
    assert kinds == set(SCHEMA) - {
        "withdrawn",
        "abort",
    }  # They take a cloud and a worker that does not answer.


def test_a_function_that_hangs_delays_no_save_under_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery, "DRAIN_SECONDS", 0.05)
    free = threading.Event()
    committed: list[bool] = []

    def hang(event: Event) -> None:
        free.wait(PATIENCE)
        committed.append(bool(list((tmp_path / "run").glob("step-*/*/MANIFEST.json"))))

    try:
        assert fit(tmp_path / "run", on_event=hang, strike=(0, 2)) == [(0, 0), (0, 1), (0, 2)]
        assert list((tmp_path / "run").glob("step-00000003/*/MANIFEST.json"))
        assert committed == []  # It still has the first event.
        assert "on_event is still busy" in caplog.text
    finally:
        free.set()
        await_(lambda: "keras_preempt-events" not in {thread.name for thread in threading.enumerate()})


def test_a_function_that_fails_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Event) -> None:
        raise SystemExit(f"at {event.kind}")

    assert len(fit(tmp_path / "run", on_event=fail)) == 2 * STEPS
    assert caplog.text.count("on_event has failed") == 1


def test_a_custom_loop_tells_its_events_too(tmp_path: Path) -> None:
    told: list[Event] = []
    config = TerminationConfig(exit_fn=lambda: None)
    with pytest.raises(Preempted):
        eight_runs(tmp_path / "run", sigterm, termination_config=config, on_event=told.append)
    for event in told:
        assert_follows_the_schema(event)
        assert SCHEMA[event.kind].loops
        assert event.start is None
    kinds = [event.kind for event in told]
    # The loop holds as soon as it has heard the signal, and the plan may be made a moment before or after that.
    assert kinds[0] == "notice"
    assert sorted(kinds[1:3]) == ["hold", "plan"]
    assert kinds[3:] == ["commit", "exit", "end"]
    assert [event.step for event in told if event.kind == "commit"] == [4]
