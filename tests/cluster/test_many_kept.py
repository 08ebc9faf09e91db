"""However many checkpoints a run keeps, a start, a save and an exit after a notice take no longer for it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import keras
import pytest

from keras_preempt.checkpoint.finding import CheckpointInfo, committed
from keras_preempt.checkpoint.layout import MANIFEST, attempt_directory, step_directory
from keras_preempt.checkpoint.manifest import Manifest
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.testing import FakeGcs
from tests.cluster.bucket import URL, own_threads
from tests.cluster.small_fit import STEPS, Then, await_, fit, make_model

FEW, MANY = 2, 200
EPOCHS = MANY // STEPS + 4
STRUCK = EPOCHS - 3, 0
"""Where the first start is preempted: after as many steps as there are to be checkpoints."""

LATER = EPOCHS - 1, 0
"""Where the second one is."""

A_FEW_REQUESTS = 8


@pytest.fixture(scope="module")
def compiled() -> keras.Model:
    return make_model()


def begun(directory: str | Path, model: keras.Model) -> CheckpointInfo:
    """Preempts the first start of a run; returns its checkpoint."""
    model.optimizer.iterations.assign(0)
    fit(directory, model=model, epochs=EPOCHS, strike=STRUCK)
    store = open_store(str(directory))
    (info,) = committed(store)
    store.close()
    return info


def at_step(info: CheckpointInfo, step: int) -> bytes:
    """The manifest of a checkpoint that was saved at another step."""
    assert info.manifest is not None
    return bytes(dataclasses.replace(info.manifest, step=step).to_json())


def keep_in_bucket(gcs: FakeGcs, info: CheckpointInfo, count: int) -> None:
    """Has a bucket keep so many checkpoints more, of earlier steps."""
    folder = f"runs/1/{info.directory}/"
    files = {
        name[len(folder) :]: gcs.content("bucket", name)
        for name in gcs.objects("bucket")
        if name.startswith(folder)
    }
    for step in range(1, count + 1):
        for name, content in {**files, MANIFEST: at_step(info, step)}.items():
            gcs.put("bucket", f"runs/1/{attempt_directory(step, info.attempt)}/{name}", content)


def keep_in_directory(directory: Path, info: CheckpointInfo, count: int) -> None:
    """The same in a directory."""
    for step in range(1, count + 1):
        folder = directory / step_directory(step)
        shutil.copytree(directory / step_directory(info.step), folder, copy_function=os.link)
        manifest = folder / info.attempt / MANIFEST
        manifest.unlink()
        manifest.write_bytes(at_step(info, step))


def all_tidied_up() -> None:
    await_(lambda: "keras_preempt-tidy" not in own_threads())


def left_after(
    kept: int, model: keras.Model, before: Callable[[], object], **options: object
) -> tuple[float, list[str]]:
    """Preempts the second start of a run in a bucket with so many checkpoints.

    Returns:
        The seconds from the notice to the exit, and the requests in between.
    """
    with FakeGcs(buckets=("bucket",)) as gcs, pytest.MonkeyPatch.context() as patch:
        for name, value in gcs.environment().items():
            patch.setenv(name, value)
        keep_in_bucket(gcs, begun(URL, model), kept)
        struck: list[float] = []

        def about_to_be_struck() -> None:
            before()
            gcs.forget_requests()
            struck.append(time.monotonic())

        looks = Then((LATER[0] - 1, STEPS - 1), about_to_be_struck)
        fit(URL, model=model, epochs=EPOCHS, strike=LATER, more=[looks], max_to_keep=10 * MANY)
        seconds = time.monotonic() - struck[0]
        manifests = [name for name in gcs.objects("bucket") if name.endswith(MANIFEST)]
        assert len(manifests) == kept + 2
        return seconds, [request.text for request in gcs.requests]


def test_from_a_notice_to_the_exit_it_takes_no_longer_where_many_checkpoints_are_kept(
    compiled: keras.Model,
) -> None:
    few, many = (left_after(kept, compiled, all_tidied_up) for kept in (FEW, MANY))
    assert len(many[1]) <= len(few[1]) + A_FEW_REQUESTS
    assert many[0] < 2 * few[0] + 0.5


def test_a_notice_ends_the_tidying_of_a_start(compiled: keras.Model) -> None:
    few, many = (left_after(kept, compiled, lambda: None) for kept in (FEW, MANY))
    # What was under way is ended with the next request.
    assert len(many[1]) <= len(few[1]) + 2 * A_FEW_REQUESTS
    assert many[0] < 2 * few[0] + 0.5


def test_a_save_takes_as_many_requests_where_many_checkpoints_are_kept(compiled: keras.Model) -> None:
    def requests(kept: int) -> int:
        with FakeGcs(buckets=("bucket",)) as gcs, pytest.MonkeyPatch.context() as patch:
            for name, value in gcs.environment().items():
                patch.setenv(name, value)
            keep_in_bucket(gcs, begun(URL, compiled), kept)

            def forget() -> None:
                await_(lambda: f"step-{(EPOCHS - 2) * STEPS:08d}" in "".join(gcs.objects("bucket")))
                all_tidied_up()
                gcs.forget_requests()

            looks = [Then((EPOCHS - 2, 0), forget)]
            # Those that were kept until now stay; with each save one goes.
            options = {"save_every": "epoch", "max_to_keep": kept + 1}
            fit(URL, model=compiled, epochs=EPOCHS, more=looks, **options)
            return len(gcs.requests)

    assert requests(100) <= requests(FEW) + 2 * A_FEW_REQUESTS


def test_a_start_reads_a_few_manifests_of_the_many_that_are_kept(
    tmp_path: Path, compiled: keras.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_in_directory(tmp_path, begun(tmp_path, compiled), MANY)
    read: list[str] = []
    real = LocalStore.read

    def reading(store: LocalStore, name: str, *, limit: int) -> bytes:
        read.extend([name] if name.endswith(MANIFEST) else [])
        return real(store, name, limit=limit)

    monkeypatch.setattr(LocalStore, "read", reading)
    before_first_step: list[int] = []
    looks = Then((STRUCK[0], 1), lambda: before_first_step.append(len(read)))
    fit(tmp_path, model=compiled, epochs=EPOCHS, more=[looks], max_to_keep=10 * MANY)
    assert len(committed(LocalStore(tmp_path))) == MANY + 2
    assert before_first_step
    assert before_first_step[0] <= 4


def test_a_job_that_saves_at_notices_alone_keeps_no_more_than_it_was_told_to(
    tmp_path: Path, compiled: keras.Model
) -> None:
    """The saves themselves leave it to the next start, which does it when its first step is done."""
    compiled.optimizer.iterations.assign(0)
    for epoch in range(1, 6):
        after = Then((epoch - 1, STEPS - 1), all_tidied_up)
        fit(tmp_path, model=compiled, epochs=9, strike=(epoch, 0), more=[after], max_to_keep=2)
        assert len(committed(LocalStore(tmp_path))) == min(epoch, 3)
    fit(tmp_path, model=compiled, epochs=9, max_to_keep=2)
    assert len(committed(LocalStore(tmp_path))) == 2


def test_what_a_start_has_restored_stays_until_it_has_saved(tmp_path: Path, compiled: keras.Model) -> None:
    """Although another one was committed later, at an earlier step."""
    info = begun(tmp_path, compiled)
    manifest = tmp_path / info.directory / MANIFEST
    for round, step in enumerate((5, 6), start=1):
        folder = tmp_path / attempt_directory(step, f"00001-{round:04d}")
        shutil.copytree(manifest.parent, folder)
        assert info.manifest is not None
        changed: Manifest = dataclasses.replace(info.manifest, step=step, attempt=folder.name)
        (folder / MANIFEST).write_bytes(changed.to_json())
    seen: list[list[int]] = []

    def look() -> None:
        all_tidied_up()
        seen.append([found.step for found in committed(LocalStore(tmp_path))])

    fit(tmp_path, model=compiled, epochs=EPOCHS, more=[Then((STRUCK[0], 2), look)], max_to_keep=1)
    assert seen == [[info.step, 6]]
    assert len(committed(LocalStore(tmp_path))) == 1
