"""A fit whose directory is a bucket: it resumes exactly, says at once what cannot work, and outlives the bucket."""

from __future__ import annotations

import logging
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import pytest

from keras_preempt import Event, TerminationConfig
from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.layout import SAVE_REQUEST
from keras_preempt.checkpoint.storage import staging
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.report import events
from keras_preempt.testing import FakeGcs
from tests.cluster.bucket import URL, own_threads
from tests.cluster.small_fit import STEPS, Steps, Then, await_, fit, make_model

End = tuple[list[tuple[int, int]], list[bytes]]
"""The steps of a fit, and all its weights at the end."""

SHORT = 2.5
"""Seconds of a grace period that leaves no time to train on."""


@pytest.fixture(scope="module")
def compiled() -> keras.Model:
    return make_model()


@pytest.fixture
def some_model(compiled: keras.Model) -> keras.Model:
    """One that is compiled once, where it only counts which steps are run."""
    compiled.optimizer.iterations.assign(0)
    return compiled


def seeded_model() -> keras.Model:
    keras.utils.set_random_seed(3)
    return make_model()


def weights(model: keras.Model) -> list[bytes]:
    return [value.numpy().tobytes() for value in (*model.weights, *model.optimizer.variables)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> End:
    """Of a fit that nothing happens to."""
    model = seeded_model()
    return fit(tmp_path_factory.mktemp("undisturbed") / "run", model=model), weights(model)


def manifests(gcs: FakeGcs) -> list[str]:
    names = [name for name in gcs.objects("bucket") if name.endswith("MANIFEST.json")]
    return [name.removeprefix("runs/1/").partition("/")[0] for name in names]


def test_a_fit_preempted_over_a_bucket_ends_with_the_bits_of_an_undisturbed_one_and_tells_its_events(
    gcs: FakeGcs, undisturbed: End
) -> None:
    resumed = seeded_model()
    planned = threading.Event()

    def hear(event: Event) -> None:
        if event.kind == "plan":
            planned.set()

    # A step of a millisecond may be over before its worker has answered, which then stops one step later.
    answered = Then((0, 2), lambda: planned.wait(60))
    first = fit(URL, model=seeded_model(), strike=(0, 2), more=[answered], on_event=hear)
    rest = fit(URL, model=resumed, more=[answered])
    assert rest[0] == (0, 3)
    assert (first + rest, weights(resumed)) == undisturbed
    assert all(name.startswith("runs/1/") for name in gcs.objects("bucket"))
    # The events of both starts are read back in order.
    store = open_store(URL)
    told = [(event["incarnation"], event["event"]) for event in events.read(store)]
    store.close()
    starts = [(1, "start"), (1, "exit"), (2, "start"), (2, "restore"), (2, "finish")]
    assert [event for event in told if event in starts] == starts
    assert {"notice", "plan", "hold", "save", "commit"} <= {kind for _, kind in told}


def test_nothing_but_a_request_for_a_save_is_looked_for_while_nothing_happens(
    gcs: FakeGcs, some_model: keras.Model
) -> None:
    seen: list[list[str]] = []

    def look() -> None:
        seen.append([request.text for request in gcs.requests if SAVE_REQUEST not in request.text])

    def look_once_the_first_step_is_told() -> None:
        store = open_store(URL)
        await_(lambda: "first_step" in {event["event"] for event in events.read(store)})
        store.close()
        look()

    looks = [Then((0, 1), look_once_the_first_step_is_told), Then((1, STEPS - 1), look)]
    fit(URL, model=some_model, more=looks)
    assert seen[1] == seen[0]


@pytest.mark.parametrize("end", ["finished", "preempted", "an exception", "refused"])
def test_no_thread_and_no_staged_file_is_left_when_a_fit_is(
    end: str, gcs: FakeGcs, some_model: keras.Model, tmp_path: Path
) -> None:
    mine = tmp_path / "my staging"
    mine.mkdir()
    seen: list[int] = []

    def look() -> None:
        seen.append(len(list(mine.iterdir())))
        if end == "an exception":
            raise RuntimeError("of the training")

    look_in_time = Then((0, 1), look)
    if end == "refused":
        gcs.put("bucket", "runs/1/thesis.txt", b"mine")
    wanted: Any = {"an exception": RuntimeError, "refused": Exception}.get(end)
    raises = pytest.raises(wanted, match=r"of the training|thesis\.txt") if wanted else nullcontext()
    strike = (1, 1) if end == "preempted" else None
    with raises:
        fit(URL, model=some_model, more=[look_in_time], staging_dir=mine, strike=strike)
    assert seen == ([] if end == "refused" else [1])
    assert list(mine.iterdir()) == []
    assert own_threads() == []


STAGING = "Expected a directory on a local disk to stage files in.*staging_dir"


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("no permission to create", "Expected to create .*Received: 403.*roles/storage.objectUser"),
        ("no permission to delete", "Expected to delete .*Received: 403.*roles/storage.objectUser"),
        ("no such bucket", "Received: 404 .*gcloud storage buckets create gs://bucket"),
        ("refused credentials", "Expected to create .*credentials.*GOOGLE_APPLICATION_CREDENTIALS"),
        ("no credentials", "File .*/nowhere was not found.*GOOGLE_APPLICATION_CREDENTIALS to the file"),
        ("broken credentials", "File .*/file is not a valid json file.*GOOGLE_APPLICATION_CREDENTIALS"),
        ("no room", r"Expected .* MB of free space for staging.*larger disk as staging_dir"),
        *((f"staging {where}", STAGING) for where in ("in a file", "nowhere", "unwritable")),
    ],
)
def test_what_cannot_work_is_one_clear_error_before_the_first_step(
    broken: str,
    said: str,
    gcs: FakeGcs,
    some_model: keras.Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("keras_preempt.checkpoint.storage.bucket._PROOF_SECONDS", 2.0)
    (tmp_path / "file").write_text("")
    where = {
        "staging in a file": tmp_path / "file",
        "staging nowhere": tmp_path / "nowhere",
        "staging unwritable": "/proc/self",
    }
    if broken.startswith("no permission to "):
        gcs.deny.add(broken.rpartition(" ")[2])
    elif broken == "no such bucket":
        gcs.remove_bucket("bucket")
    elif broken == "refused credentials":
        gcs.unauthenticated = True
    elif broken.endswith(" credentials"):
        monkeypatch.delenv("STORAGE_EMULATOR_HOST")
        key = tmp_path / ("nowhere" if broken == "no credentials" else "file")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    elif broken == "no room":
        monkeypatch.setattr(staging.shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    steps = Steps()
    with pytest.raises(StoreUnavailable, match=said) as error:
        fit(URL, model=some_model, more=[steps], staging_dir=where.get(broken))
    assert steps.run == []
    assert "\n" not in str(error.value)
    if broken != "no such bucket":
        probes = [name for name in gcs.objects("bucket") if "/.tmp-probe/" in name]
        assert list(gcs.objects("bucket")) == (probes if broken == "no permission to delete" else [])


def test_training_goes_on_without_its_bucket_and_says_that_nothing_is_saved(
    gcs: FakeGcs,
    undisturbed: End,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = seeded_model()
    gone = Then((0, 1), lambda: gcs.remove_bucket("bucket"))
    with caplog.at_level(logging.WARNING, "keras_preempt"):
        steps = fit(URL, model=model, more=[gone], save_every=3)
    assert "NOT saved" in caplog.text
    assert "Check the name of the bucket" in caplog.text
    assert (steps, weights(model)) == undisturbed


def test_a_preemption_that_cannot_be_saved_exits_with_74_and_the_last_good_checkpoint_stays(
    gcs: FakeGcs,
    undisturbed: End,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, resumed = seeded_model(), seeded_model()

    def lose_permission() -> None:
        await_(lambda: manifests(gcs))
        gcs.deny.add("create")

    then = Then((0, 2), lose_permission)
    with caplog.at_level(logging.WARNING, "keras_preempt"), pytest.raises(SystemExit) as left:
        fit(URL, model=model, strike=(1, 0), more=[then], save_every=2, termination=TerminationConfig())
    assert left.value.code == 74
    assert "The checkpoint at step 5 was NOT saved: Expected to create" in caplog.text
    assert "Received: 403" in caplog.text
    assert manifests(gcs) == ["step-00000002"]
    assert "Preempted, and NOT saved at step 5" in caplog.text
    assert "the restarted job continues from step-00000002/" in caplog.text

    gcs.deny.clear()
    steps, end = undisturbed
    assert (fit(URL, model=resumed), weights(resumed)) == (steps[2:], end)


def test_a_preemption_with_nothing_saved_at_all_says_that_everything_is_lost(
    gcs: FakeGcs, some_model: keras.Model, caplog: pytest.LogCaptureFixture
) -> None:
    gone = Then((0, 1), lambda: gcs.remove_bucket("bucket"))
    with caplog.at_level(logging.WARNING, "keras_preempt"), pytest.raises(SystemExit) as left:
        fit(URL, model=some_model, strike=(0, 3), more=[gone], termination=TerminationConfig())
    assert left.value.code == 74
    assert "Preempted, and NOT saved at step 4" in caplog.text
    assert "the restarted job starts from the beginning: everything that was trained is lost" in caplog.text


def test_a_commit_that_stalls_beyond_the_deadline_exits_with_74_and_is_not_said_to_be_lost(
    gcs: FakeGcs, some_model: keras.Model, caplog: pytest.LogCaptureFixture
) -> None:
    gcs.fail_next("stall", times=10_000, match="MANIFEST.json", stall_seconds=2 * SHORT)
    with caplog.at_level(logging.WARNING, "keras_preempt"), pytest.raises(SystemExit) as left:
        fit(URL, model=some_model, strike=(0, 2), termination=TerminationConfig(grace_period=SHORT))
    assert left.value.code == 74
    assert "It is NOT KNOWN whether the checkpoint at step 3 was saved" in caplog.text
    assert "Preempted, and NOT KNOWN whether saved at step 3" in caplog.text
    assert "NOT saved" not in caplog.text
