"""The time between a notice and the end of its grace period, with two real workers.

| what comes | the fit |
|---|---|
| notices with time, of one worker and later of the other | saves, trains on, saves, exits before the earlier deadline |
| two deadlines, an hour and no time | exits at once |
| the end of training within the grace | finishes |
| a notice on the last step | finishes |
| a notice cancelled after the first save | finishes |
| a notice cancelled before the first save, and another one | saves and exits |
| a second notice during the final save | saves and exits |
| a signal in a step of 3 s | is heard and agreed on before that step ends |

All share two processes, which train one model again and again: see scripts/grace_cases.py.
"""

from __future__ import annotations

import json
import random
import signal
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness import ClusterResult, RunningCluster, describe, run_cluster, start_cluster
from tests.cluster.training import PREEMPTED, SCRIPT, Training, Undisturbed

SHORT_SCRIPT = Path(__file__).parent / "scripts" / "short_grace.py"
CASES_SCRIPT = Path(__file__).parent / "scripts" / "grace_cases.py"
ROOM_IN_FIVE_SECONDS = 0.25
"""Seconds of the slowest step that leave room for one save, some training and another save; see `has_room`."""
GOES_ON, LEAVES, ENDS = ("preempted", True), ("preempted", False), ("finished", False)
CASES: dict[str, tuple[list[str], list[tuple[str, bool]] | None]] = {
    "ends_within_the_grace": (["finished"], [GOES_ON, ENDS]),
    "in_the_last_step": (["finished"], None),
    "cancelled_after_the_first_save": (["finished"], [GOES_ON, ENDS]),
    "cancelled_and_noticed_again": (["Preempted", "finished"], [GOES_ON, LEAVES, ENDS]),
    "again_during_the_final_save": (["Preempted", "finished"], None),
    "in_a_long_step": (["finished"], None),
    "different_deadlines": (["Preempted", "finished"], [GOES_ON, LEAVES, ENDS]),
    "until_the_deadline": (["SystemExit 75"], [GOES_ON, GOES_ON, ("deadline", False)]),
}
"""How the fits of each case end; its plans, each with a reason and whether training goes on."""


class Case:
    """What one worker has told of one case."""

    def __init__(self, folder: Path, name: str, worker: int, found: dict[str, Any]) -> None:
        self.fits: list[dict[str, Any]] = found["fits"]
        self.notes: dict[str, Any] = found["notes"]
        self._folder = folder / name / "events"
        self._pattern = f"*.w{worker:05d}.jsonl"

    def events(self, kind: str) -> list[dict[str, Any]]:
        logs = sorted(self._folder.glob(self._pattern))
        lines = (line for path in logs for line in path.read_text().splitlines())
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    @property
    def plans(self) -> list[tuple[str, bool]]:
        """Of each plan, its reason and whether it goes on."""
        return [(plan["reason"], plan["goes_on"]) for plan in self.events("plan")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cases")


@pytest.fixture(scope="module")
def gone(folder: Path) -> list[float]:
    """Runs all cases. When each worker had ended at the last one's deadline, in seconds since 1970."""
    with start_cluster(CASES_SCRIPT, 2, args=[str(folder)]) as running:
        result, gone = _until_gone(running)
    assert all((folder / f"{worker}.json").exists() for worker in range(2)), describe(result.outputs)
    return gone


@pytest.fixture(scope="module")
def cases(folder: Path, gone: list[float]) -> dict[str, list[Case]]:
    """Of each case, both workers."""
    found = [json.loads((folder / f"{worker}.json").read_text()) for worker in range(2)]
    return {
        name: [Case(folder, name, worker, found[worker][name]) for worker in range(2)] for name in found[0]
    }


def _until_gone(running: RunningCluster) -> tuple[ClusterResult, list[float]]:
    """When each worker has ended, in seconds since 1970."""
    try:
        exits = running.cluster.wait(300)
    except TimeoutError as error:
        raise AssertionError(f"{error}\n{describe(running.outputs)}") from None
    began = time.time() - time.monotonic()
    exits = sorted(exits, key=lambda end: end.index)
    return ClusterResult([end.code for end in exits], running.outputs, 0.0), [began + end.at for end in exits]


@pytest.mark.parametrize("name", CASES)
def test_each_notice_is_answered_and_in_the_end_it_is_as_if_nothing_had_happened(
    name: str, cases: dict[str, list[Case]]
) -> None:
    ends, plans = CASES[name]
    for worker, case in enumerate(cases[name]):
        assert [fit["ended"] for fit in case.fits] == ends
        assert plans in (None, case.plans)
        assert case.notes["threads"] == []
        assert case.notes["handler"]
        if ends[-1] == "finished":
            undisturbed = cases["undisturbed"][worker].fits[0]
            assert [step for fit in case.fits for step in fit["steps"]] == undisturbed["steps"]
            assert case.fits[-1]["digest"] == undisturbed["digest"] != ""


def test_a_notice_on_the_last_step_lets_all_finish(cases: dict[str, list[Case]]) -> None:
    for case in cases["in_the_last_step"]:
        assert [reason for reason, _ in case.plans] == ["preempted"], "the notice came after training"
        assert case.events("finish")
        assert not case.events("exit")


@pytest.mark.parametrize(
    ("name", "notified", "before"),
    [("cancelled_and_noticed_again", 0, True), ("cancelled_after_the_first_save", 1, False)],
)
def test_a_notice_is_cancelled_before_or_after_its_first_save(
    name: str, notified: int, before: bool, cases: dict[str, list[Case]]
) -> None:
    (withdrawn,), commits = cases[name][notified].events("withdrawn"), cases[name][notified].events("commit")
    assert (withdrawn["time"] < commits[0]["time"]) == before


def test_further_notices_during_the_final_save_change_nothing(cases: dict[str, list[Case]]) -> None:
    first, second = cases["again_during_the_final_save"]
    assert len(first.events("notice")) == 2
    assert len(second.events("notice")) == 1
    assert first.events("notice")[1]["time"] > first.events("hold")[0]["time"]
    assert [event["saved"] for event in first.events("exit")] == [first.events("restore")[0]["checkpoint"]]


def test_the_earliest_deadline_rules(cases: dict[str, list[Case]]) -> None:
    for case in cases["different_deadlines"]:
        first, second = case.events("commit")[:2]
        assert first["step"] < second["step"] == len(case.fits[0]["steps"])


def test_a_signal_in_a_long_step_is_heard_at_once_and_the_others_know_before_it_ends(
    cases: dict[str, list[Case]],
) -> None:
    struck, other = cases["in_a_long_step"]
    sent, ended = struck.notes["sent"], struck.notes["ended"]
    assert sent[-1] < ended
    assert ended - struck.notes["began"] >= 3.0
    heard = struck.events("notice")
    assert len(heard) == len(sent)
    # Each by itself, in one step; the median, since the machine has others to serve as well.
    late = [notice["received_at"] - at for notice, at in zip(heard, sent, strict=True)]
    told = [notice["time"] - at for notice, at in zip(heard, sent, strict=True)]
    assert statistics.median(late) <= 0.1
    assert statistics.median(told) <= 0.1
    for case in (struck, other):
        plan, hold = case.events("plan")[0], case.events("hold")[0]
        assert sent[0] < plan["time"] < ended
        assert hold["time"] >= case.notes["ended"]


def test_two_workers_use_the_earlier_grace_and_resume_from_the_last_save(
    cases: dict[str, list[Case]], folder: Path, gone: list[float]
) -> None:
    workers = cases["until_the_deadline"]
    (notice,) = workers[1].events("notice")
    grace = workers[1].notes["grace"]
    deadline = notice["received_at"] + grace
    for case in workers:
        first, second, last = (commit["step"] for commit in case.events("commit"))
        assert first < second < last - 1, "nothing was trained between the saves"
        assert last == len(case.fits[0]["steps"])
        assert (case.events("hold")[-1]["time"] - notice["received_at"]) / grace > 0.5
        assert case.events("exit")[0]["time"] < deadline
    assert max(gone) < deadline

    run_cluster(CASES_SCRIPT, 2, args=[str(folder), "resume"]).assert_ok()
    for worker, case in enumerate(workers):
        resumed = json.loads((folder / f"{worker}.resumed.json").read_text())
        undisturbed = cases["undisturbed_and_long"][worker].fits[0]
        assert case.events("restore")[0]["checkpoint"] == case.events("exit")[0]["saved"]
        assert case.fits[0]["steps"] + resumed["steps"] == undisturbed["steps"]
        assert resumed["digest"] == undisturbed["digest"] != ""


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(6))
def test_workers_with_any_grace_leave_in_time_and_lose_nothing(
    seed: int, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    choose = random.Random(seed)
    workers, spe = choose.choice([(2, "1"), (3, "1"), (2, "2")])
    args = ("--spe", spe, "--epochs", "6", *choose.choice([(), ("--no-validation",), ("--data", "repeat")]))
    training = Training(tmp_path, workers, args)
    at = f"^AT batch {choose.randrange(2)} {2 * choose.randrange(3)}"
    grace, slow = choose.uniform(4, 20), choose.uniform(0.05, 0.6)
    doomed = choose.randrange(workers)
    command = [*training.command, "--grace", str(grace), "--slow", str(slow)]
    with start_cluster(SCRIPT, workers, args=command) as running:
        running.wait_for_line(doomed, at)
        running.signal(doomed, signal.SIGTERM)
        result, gone = _until_gone(running)
    training.results.append(result)
    assert result.codes in ([PREEMPTED] * workers, [0] * workers), describe(result.outputs)
    if result.codes[0]:
        assert max(gone) < training.events(doomed)[0]["notice"][0]["received_at"] + grace
        training.finish()
    training.assert_same(undisturbed(workers, *args))


@pytest.mark.parametrize(
    "jump",
    [
        pytest.param(0.0, id="none", marks=pytest.mark.chaos),
        pytest.param(3600.0, id="forward"),
        pytest.param(-3600.0, id="back", marks=pytest.mark.chaos),
    ],
)
def test_of_five_seconds_a_fit_with_small_steps_uses_some_though_the_clock_is_set_meanwhile(
    jump: float, tmp_path: Path
) -> None:
    grace = 5.0
    args = [str(tmp_path / "run"), str(grace), str(jump)]
    # Fresh: the clock is one's own before anything is imported.
    result = run_cluster(SHORT_SCRIPT, 1, args=args, fresh=True).assert_codes(PREEMPTED)
    case = Case(tmp_path, "run", 0, {"fits": [], "notes": {}})
    (notice,), (exit,), (begun,) = case.events("notice"), case.events("exit"), case.events("first_step")
    assert exit["time"] - jump < notice["received_at"] + grace
    if begun["seconds"] > ROOM_IN_FIVE_SECONDS and len(case.plans) == 1:
        assert not case.plans[0][1], "the machine is so busy that there is no room for a second save"
        return
    assert [goes_on for _, goes_on in case.plans] == [True, False], describe(result.outputs)
    first, last = case.events("commit")
    assert last["step"] - first["step"] > 10
    assert exit["saved"].startswith(f"step-{last['step']:08d}")
    assert f"ENDED {last['step']}" in result.outputs[0].splitlines()
