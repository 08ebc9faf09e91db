"""The benchmark of a resume splits the whole time of a real one, and tells which way the input went."""

from __future__ import annotations

import re

import pytest

from tests.benchmarked import measured, rows_of

import resume_cost  # isort: skip
import resume_position  # isort: skip
import resumption  # isort: skip
from figures import Aims  # isort: skip
from resumption import ARRAYS, ONE, PARTS, REPLAY, STATE, Job, Resumption, ResumptionFailed  # isort: skip

PLACES = ("1 device", "Mirrored(2)", "2 workers")
JOURNAL = {
    "started": 100.0,
    "imported": 103.0,
    "connected": 104.5,
    "fit_began": 106.0,
    "built_in_fit": 0.5,
    "input_restored_in": 0.25,
    "how": "by replay of 1 iterator, 20 batches",
    "restored": 107.5,
    "batches": 21,
    "steps": [110.0, 110.5, 111.0, 112.0],
}


def test_the_parts_are_those_that_were_noted_and_sum_up_to_the_whole() -> None:
    split = resumption.split(JOURNAL)
    assert split.parts == {
        "import": 3.0,
        "cluster": 1.5,
        "build": 2.0,  # 1.5 before fit, 0.5 in the callback
        "restore": 0.75,  # 1.5 in the callback, without what else is done in it
        "replay": 0.25,
        "compile": 2.0,
        "first step": 0.5,
    }
    assert split.whole == sum(split.parts.values()) == 10.0
    assert split.batches == 21


def resumed(whole: float, replay: float = 0.25, step: float = 0.05) -> Resumption:
    parts = dict.fromkeys(PARTS, 0.0) | {"replay": replay, "import": whole - replay}
    return Resumption(parts, whole, step, 20)


def test_the_report_shows_the_median_run_and_what_a_batch_costs_beside_training_on_it() -> None:
    state, replay = Job(1, STATE, 20, 5), Job(1, REPLAY, 20, 5)
    output = resume_cost.report(
        {state: [resumed(9.0, 0.05), resumed(7.0, 0.05), resumed(8.0, 0.05)], replay: [resumed(6.0)]}
    )
    rows = rows_of(output)
    assert [row for row in rows if row in PARTS] == list(PARTS)
    assert rows["whole"] == ["8.00", "6.00"]
    assert (rows["least whole"], rows["most"]) == (["7.00", "6.00"], ["9.00", "6.00"])
    assert rows["1 device, replay"] == ["250", "12.50", "50.00", "0.250"]
    assert "takes 0.20 x the time of the replay of 20 batches" in output


def test_arrays_are_preempted_early_in_the_first_epoch_and_late_in_the_third_of_the_same_in_each_place() -> (
    None
):
    jobs = [job for job in resume_position.jobs([100, 10_000], 2) if job.way == ARRAYS]
    assert [job.place for job in jobs] == [place for place in PLACES for _ in range(2)]
    for early, late in zip(jobs[::2], jobs[1::2], strict=True):
        in_all = early.batches + early.after
        assert late.batches + late.after == in_all
        assert early.batches < in_all / 6
        assert 5 / 6 * in_all < late.batches < in_all - 5


def test_of_runs_that_end_at_different_places_between_two_snapshots_the_median_counts() -> None:
    of_state = [job for job in resume_position.jobs([100], 2) if job.way == STATE and job.place != ONE]
    asked: dict[str, list[int]] = {job.place: [] for job in of_state}

    def resume(job: Job) -> Resumption:
        if job.way == STATE and job.place != ONE:
            asked[job.place].append(job.batches)
            return resumed(7.0, (0.3, 0.1, 0.2)[len(asked[job.place]) - 1])
        return resumed(9.0)

    found = resume_position.run([100], 2, resume)
    assert {tuple(batches) for batches in asked.values()} == {(100, 137, 174)}
    assert [found[job].parts["replay"] for job in of_state] == [0.2, 0.2]


@pytest.mark.parametrize(
    ("early", "late", "status"), [(0.1, 0.49, 0), (0.1, 0.6, 1), (0.6, 0.85, 0), (0.6, 1.0, 1)]
)
def test_a_resume_of_arrays_that_costs_more_late_than_early_misses_the_aim_unless_it_costs_little(
    early: float, late: float, status: int
) -> None:
    jobs = [Job(1, ARRAYS, 10, 90, mirrored=True), Job(1, ARRAYS, 90, 10, mirrored=True)]
    aims = Aims()
    output = resume_position.report_arrays(
        dict(zip(jobs, [resumed(7.0, early), resumed(8.0, late)], strict=True)), aims
    )
    assert re.split(r"\s{2,}", output.splitlines()[-1]) == [
        "Mirrored(2), batch 90 of 100",
        f"{early:.2f}",
        f"{late:.2f}",
        "7.00",
        "8.00",
    ]
    assert len(aims.lines) == 1
    assert aims.report() == status


@pytest.mark.bench
def test_a_real_resume_is_split_and_an_input_that_went_another_way_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(resumption._TOLD, REPLAY, "magic")
    with pytest.raises(ResumptionFailed, match=r"continue by its magic\. Received: by replay of "):
        resumption.resume(Job(1, REPLAY, 6, 5))


@pytest.mark.bench
@pytest.mark.timeout(1300)
def test_all_ways_are_measured_in_real_resumes() -> None:
    rows = measured("resume_cost.py", "--quick")
    ways = ["1 device, iterator state", "1 device, replay", "2 workers, replay"]
    ways += [f"{place}, 3 epochs of arrays" for place in PLACES]
    assert rows["seconds, of the median run"] == ways
    whole = [float(cell) for cell in rows["whole"]]
    for way in range(len(ways)):
        assert sum(float(rows[part][way]) for part in PARTS) == pytest.approx(whole[way], abs=0.05)
        assert all(float(rows[part][way]) > 0 for part in ("import", "build", "restore", "replay", "compile"))
        assert len(rows[ways[way]]) == 4
    assert float(rows["cluster"][2]) > float(rows["cluster"][0])
    for place in PLACES:
        assert len(rows[f"{place}, batch 54 of 60"]) == 4
