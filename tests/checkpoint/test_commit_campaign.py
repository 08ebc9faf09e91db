"""No order of events makes a directory wrong: seeded schedules, checked after every operation (`campaign`).

A check is worth what it can find: the last tests break the package, each in one way, and the campaign must notice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from keras_preempt.checkpoint import commit as committing
from keras_preempt.checkpoint import finding, incarnations, tidying
from keras_preempt.checkpoint.errors import AlreadyExists, NotFound
from keras_preempt.checkpoint.layout import MANIFEST, incarnation_file
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage import budget, gcs_transfer, obstore_transfer
from keras_preempt.checkpoint.tidying import Tidying
from tests.checkpoint import campaign as campaigns
from tests.checkpoint.campaign import Result, campaign
from tests.checkpoint.campaign_bucket import bucket, emulator
from tests.checkpoint.campaign_scenario import seeds_of
from tests.checkpoint.campaign_store import Memory
from tests.checkpoint.storage.buckets import FAKES, emulated_bucket

Patch = Callable[[pytest.MonkeyPatch], None]

SHORT = 160
LONG = 12_000
MUTANT = 1_000  # schedules in which a broken function must be found out; most are in the first ten

CRASHES = {
    (operation, sort, f"crash-{when}")
    for operation, sorts in {
        "children": ("top", "incarnations"),
        "create": ("incarnations", "part.json", "MANIFEST.json"),
        "writer": ("mirrored.safetensors", "local.safetensors"),
        "list": ("step",),
        "read": ("part.json", "MANIFEST.json"),
        "delete": ("MANIFEST.json", "part.json", "mirrored.safetensors", "local.safetensors"),
    }.items()
    for sort in sorts
    for when in ("before", "after")
}


def test_a_short_campaign_finds_nothing_wrong() -> None:
    result = campaign(range(SHORT))
    assert result.failed is None
    assert result.commits > SHORT
    assert result.exceptions > 0, (
        "a committer that was held up for too long takes its manifest back: must happen"
    )


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_a_long_campaign_finds_nothing_wrong_and_has_cut_every_operation_on_both_sides() -> None:
    result = campaign(range(LONG))
    assert result.failed is None
    assert not {crash for crash in CRASHES if not result.happened[crash]}
    for fault in ("lost", "late", "failed", "pause"):
        for operation, sort in (
            ("create", "MANIFEST.json"),
            ("create", "part.json"),
            ("delete", "MANIFEST.json"),
        ):
            assert result.happened[operation, sort, fault]


def test_a_schedule_follows_from_its_seed() -> None:
    for seed in range(16):
        once, again = campaigns.run(seed), campaigns.run(seed)
        assert (once.steps, once.commits, once.happened) == (again.steps, again.commits, again.happened)


# -- A bucket -------------------------------------------------------------------------------------------------


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_FIRST_DELAY", 0.002)
    monkeypatch.setattr(budget, "_LONGEST_DELAY", 0.02)


@pytest.mark.parametrize(
    "count", [8, pytest.param(240, marks=[pytest.mark.chaos, pytest.mark.timeout(3600)])]
)
@pytest.mark.parametrize("scheme", FAKES)
@pytest.mark.usefixtures("hasty")
def test_a_campaign_in_a_bucket_with_a_bad_network_finds_nothing_wrong(scheme: str, count: int) -> None:
    result = campaign(range(count), partial(bucket, scheme=scheme))
    assert result.failed is None
    assert result.commits > count


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["moto", "azurite"])
def test_a_campaign_in_an_emulator_finds_nothing_wrong(name: str) -> None:
    with emulated_bucket(name) as url:
        result = campaign(range(130), partial(emulator, url=url))
    assert result.failed is None
    assert sum(result.happened.values()) >= 200


@pytest.mark.parametrize(
    ("scheme", "creation", "looking"),
    [
        ("gs", gcs_transfer._Put, "_look"),
        ("s3", obstore_transfer._Creation, "_stored"),
        ("az", obstore_transfer._Creation, "_stored"),
    ],
)
@pytest.mark.usefixtures("hasty")
def test_a_bucket_that_does_not_know_its_own_writes_is_noticed(
    scheme: str, creation: Any, looking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(creation, looking)

    def look(put: Any, failure: BaseException) -> None:
        if real(put, failure) is not None:
            raise AlreadyExists(put._name, "the bucket")

    monkeypatch.setattr(creation, looking, look)
    assert ": calm: " in _found(campaign(seeds_of("calm", 40), partial(bucket, scheme=scheme)))


# -- The campaign itself --------------------------------------------------------------------------------------


def no_check_of_the_parts(patch: pytest.MonkeyPatch) -> None:
    real = committing.commit

    def commit(store: Any, attempt: committing.Attempt, *given: Any, **more: Any) -> Any:
        others = tuple(range(1, attempt.members))
        return real(store, replace(attempt, writers=(0,), doomed=others), *given, **more)

    patch.setattr(committing, "commit", commit)
    patch.setattr(committing, "check_boxes", lambda *_: None)


def fence_only_at_the_beginning(patch: pytest.MonkeyPatch) -> None:
    real, calls = committing.check_fence, iter(range(10**9))
    patch.setattr(committing, "check_fence", lambda *given: None if next(calls) % 2 else real(*given))


def without(module: Any, name: str, instead: object = None) -> Patch:
    """A function of the package that does nothing."""

    def broken(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(module, name, lambda *_: instead)

    broken.__name__ = f"without {name}"
    return broken


def own_manifest_although_another_won(patch: pytest.MonkeyPatch) -> None:
    def store_manifest(store: Any, directory: str, manifest: Any) -> Any:
        with contextlib.suppress(AlreadyExists):
            store.create(f"{directory}/{MANIFEST}", manifest.to_json())
        return manifest

    patch.setattr(committing, "_store_manifest", store_manifest)


def retention_of_the_oldest(patch: pytest.MonkeyPatch) -> None:
    def superseded(given: Any, attempts: Any) -> Any:
        return sorted(attempts, key=lambda seen: seen.order)[given._retention.max_to_keep :]

    patch.setattr(Tidying, "_superseded", superseded)


def retention_of_one_too_few(patch: pytest.MonkeyPatch) -> None:
    real = Tidying.__init__

    def init(tidying: Any, store: Any, rules: Retention, *given: Any) -> None:
        real(tidying, store, Retention(max(1, rules.max_to_keep - 1), rules.keep_every), *given)

    patch.setattr(Tidying, "__init__", init)


def retention_that_clears_the_present_incarnation(patch: pytest.MonkeyPatch) -> None:
    real = Tidying.__init__

    def init(tidying: Any, store: Any, rules: Any, incarnation: int) -> None:
        real(tidying, store, rules, incarnation + 1)

    patch.setattr(Tidying, "__init__", init)


def manifest_removed_last(patch: pytest.MonkeyPatch) -> None:
    def remove(store: Any, directory: str) -> None:
        for info in reversed(store.list(directory)):
            with contextlib.suppress(NotFound):
                store.delete(info.name)

    patch.setattr(tidying, "remove_attempt", remove)


def one_look_at_the_directory(patch: pytest.MonkeyPatch) -> None:
    real = finding._look
    patch.setattr(finding, "_look", lambda *given: (real(*given)[0], []))


def claims_that_are_not_exclusive(patch: pytest.MonkeyPatch) -> None:
    def claim(store: Any, info: Any) -> int:
        number = incarnations.latest(store) + 1
        with contextlib.suppress(AlreadyExists):
            store.create(incarnation_file(number), b"{}")
        return number

    patch.setattr(incarnations, "claim", claim)


@pytest.mark.parametrize(
    ("broken", "rule", "kind"),
    [
        (no_check_of_the_parts, "restore", "calm"),
        (without(committing, "check_fence"), "fence", "calm"),
        (fence_only_at_the_beginning, "fence", "calm"),
        (own_manifest_although_another_won, "two winners", "duplicates"),
        (without(committing, "_check_still_there"), "told", "stale"),
        (retention_of_the_oldest, "superseded", "calm"),
        (without(Tidying, "_is_first", False), "superseded", "calm"),
        (retention_of_one_too_few, "superseded", "calm"),
        (without(Tidying, "_has_its_parts", True), "superseded", "stale"),
        (retention_that_clears_the_present_incarnation, "calm", "calm"),
        (manifest_removed_last, "whole", "calm"),
        (one_look_at_the_directory, "restore", "restoring"),
        (claims_that_are_not_exclusive, "claims", "twice"),
    ],
)
def test_a_broken_package_is_noticed(
    broken: Patch, rule: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    assert f": {rule}: " in _found(campaign(seeds_of(kind, MUTANT)))


def test_a_store_that_overwrites_is_noticed() -> None:
    seeds = seeds_of("duplicates", MUTANT)
    result = campaign(seeds, lambda _: contextlib.nullcontext(Memory(may_overwrite=True)))
    assert ": overwritten: " in _found(result)


def _found(result: Result) -> str:
    assert result.failed is not None
    return result.failed
