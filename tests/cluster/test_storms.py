"""Random signals at random moments: every step is that of an undisturbed run, every status true, nothing left behind.

A storm is one job of several starts. Signals hit one worker, all of them or the launcher, in start-up, restore,
training, validation and saving, from outside; then the job is started again, until it is finished. What happens follows
from the seed, but for how the processes race each other.

| | `make test` | chaos |
|---|---|---|
| storms | 1, forked workers | `KERAS_PREEMPT_STORMS` of them (100), from `KERAS_PREEMPT_FIRST_STORM` (0) on |
| that hit only in saves | none | a tenth as many (10) |
| with saves in memory, lost with some machines | none | six tenths as many (60) |
| with standbys, under the launcher | none | six tenths as many (60) |
| workers | 2 | 1 to 4, under the launcher and without it |
| where Keras runs on torch, of all three kinds | none | 40, with `KERAS_BACKEND=torch` |
| workers there | none | 1, under the launcher and without it; data and validation data may have processes |
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.storms.job import STANDBY
from tests.cluster.storms.plan import LAUNCHER, Blow, Storm, storm, storm_in_memory, storm_in_saves
from tests.cluster.storms.verdict import of_the_launcher, of_the_workers, wrong
from tests.cluster.storms.weather import Gone, Start, Weather

FIRST = int(os.environ.get("KERAS_PREEMPT_FIRST_STORM", "0"))
COUNT = int(os.environ.get("KERAS_PREEMPT_STORMS", "100"))

ON_TORCH = os.environ.get("KERAS_BACKEND") == "torch"
ON_TORCH_COUNT = int(os.environ.get("KERAS_PREEMPT_STORMS", "40"))

Calm = Callable[[int, tuple[str, ...]], Weather]


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Calm:
    """The job of so many workers, on that data, that nothing happens to; each is run once."""

    @functools.cache
    def get(workers: int, data: tuple[str, ...]) -> Weather:
        weather = Weather(tmp_path_factory.mktemp("calm"), Storm(-1, workers, False, (), (), data=data))
        weather.rage()
        return weather

    return get


def go_through(chosen: Storm, folder: Path, calm: Calm) -> None:
    weather = Weather(folder, chosen)
    undisturbed = calm(chosen.workers, chosen.data)
    weather.rage()
    found = wrong(weather, undisturbed)
    story = [f"  start {s.number}: {s.codes or s.status}, hit by {len(s.struck)}" for s in weather.starts]
    assert not found, "\n".join([str(chosen), *story, *found[:20]])


def test_a_job_that_went_through_a_storm_ends_as_if_nothing_had_happened(tmp_path: Path, calm: Calm) -> None:
    go_through(storm(0, workers=2, launched=False), tmp_path, calm)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("draw", "seed"),
    [
        *((storm, seed) for seed in range(FIRST, FIRST + COUNT)),
        *((storm_in_saves, seed) for seed in range(FIRST, FIRST + -(-COUNT // 10))),
        *((storm_in_memory, seed) for seed in range(FIRST, FIRST + -(-COUNT * 6 // 10))),
    ],
)
def test_jobs_that_went_through_storms_end_as_if_nothing_had_happened(
    draw: Callable[[int], Storm], seed: int, tmp_path: Path, calm: Calm
) -> None:
    go_through(draw(seed), tmp_path, calm)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + -(-COUNT * 6 // 10)))
def test_jobs_with_standbys_end_as_if_nothing_had_happened(
    seed: int, tmp_path: Path, calm: Calm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STANDBY, "1")
    go_through(replace(storm(seed), launched=True), tmp_path, calm)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not ON_TORCH, reason="Keras does not run on torch here")
@pytest.mark.parametrize("seed", range(FIRST, FIRST + ON_TORCH_COUNT))
def test_jobs_on_torch_that_went_through_storms_end_as_if_nothing_had_happened(
    seed: int, tmp_path: Path, calm: Calm
) -> None:
    draw = (storm, storm, storm_in_saves, storm_in_memory)[seed // 2 % 4]
    # Two of them are kept from epoch to epoch.
    trained, validated = (0, 1, 0, 2)[seed % 4], (0, 1, 2)[seed // 4 % 3]
    data = ("--loader-workers", str(trained), "--validation-workers", str(validated))
    go_through(replace(draw(seed, workers=1), data=data), tmp_path, calm)


@pytest.mark.parametrize(
    ("gone", "said", "right"),
    [
        (Gone(1, 0, 75, frozenset({"ready", "exit"})), "", True),
        (Gone(1, 0, 0, frozenset({"ready", "finish"})), "", True),
        (Gone(1, 0, 1, frozenset({"ready"})), "", False),
        (Gone(1, 0, -15, frozenset({"ready"})), "", False),
        (Gone(1, 0, -15, frozenset({"ready"})), "w0 was ended by the launcher (SIGTERM)", True),
        (Gone(1, 0, 69, frozenset({"ready"})), "", False),
    ],
)
def test_under_the_launcher_too_the_status_of_each_worker_is_judged(
    gone: Gone, said: str, right: bool, tmp_path: Path
) -> None:
    start = Start(0, tmp_path, outputs=[""], said=said, status=0, gone=[gone], checkpoints=["step-00000001"])
    assert (of_the_workers(start) == []) == right


@pytest.mark.parametrize("unheard", [set(), {signal.SIGTERM}])
def test_a_signal_ends_the_launcher_only_before_it_has_a_handler(unheard: set[int], tmp_path: Path) -> None:
    blow = Blow("SIGTERM", "start-up", 0, 0.0, LAUNCHER, ((signal.SIGTERM, 0.0),))
    start = Start(0, tmp_path, status=-signal.SIGTERM, unheard=unheard, struck=[(blow, True)])
    assert (of_the_launcher(start) == []) == bool(unheard)
