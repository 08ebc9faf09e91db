"""The time between a notice and the end of its grace period, with two real workers.

| what comes | the fit | test |
|---|---|---|
| a notice with time | saves, trains on, saves again, exits before the deadline | test_two_workers_use_their_grace_... |
| the end of training within the grace | finishes | CASES |
| a notice on the last step, with and without time | finishes | CASES |
| two deadlines | exits before the earlier one | CASES |
| a notice cancelled before, after the first save | finishes | CASES |
| a notice after a cancelled one | saves and exits | CASES |
| a second notice during the final save | saves and exits | CASES |
| a signal in a step of 5 s | is heard and agreed on before that step ends | CASES |

The CASES share two processes, which train one model again and again: see scripts/grace_cases.py.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness import ClusterResult, describe, run_cluster, start_cluster
from tests.cluster.training import PREEMPTED, SCRIPT, Training, Undisturbed

ROOT = Path(__file__).parents[2]
CASES = {
    "ends_within_the_grace": ["finished"],
    "in_the_last_step": ["finished"],
    "in_the_last_step_with_time": ["finished"],
    "cancelled_before_the_first_save": ["finished"],
    "cancelled_after_the_first_save": ["finished"],
    "cancelled_and_noticed_again": ["Preempted", "finished"],
    "again_during_the_final_save": ["Preempted", "finished"],
    "in_a_long_step": ["finished"],
    "different_deadlines": ["Preempted", "finished"],
}


class Case:
    """What one worker has told of one case."""

    def __init__(self, folder: Path, name: str, worker: int, found: dict[str, Any]) -> None:
        self.fits: list[dict[str, Any]] = found["fits"]
        self.notes: dict[str, Any] = found["notes"]
        self._logs = sorted((folder / name).glob(f"events/*.w{worker:05d}.jsonl"))

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = (line for path in self._logs for line in path.read_text().splitlines())
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    @property
    def plans(self) -> list[tuple[str, bool]]:
        """Of each plan, its reason and whether it goes on."""
        return [(plan["reason"], plan["goes_on"]) for plan in self.events("plan")]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Case]]:
    """Of each case, both workers."""
    folder = tmp_path_factory.mktemp("cases")
    script = Path(__file__).parent / "scripts" / "grace_cases.py"
    run_cluster(script, 2, args=[str(folder)], env={"PYTHONPATH": str(ROOT)}, timeout=300).assert_ok()
    found = [json.loads((folder / f"{worker}.json").read_text()) for worker in range(2)]
    return {
        name: [Case(folder, name, worker, found[worker][name]) for worker in range(2)] for name in found[0]
    }


@pytest.mark.parametrize("name", CASES)
def test_it_ends_as_if_nothing_had_happened(name: str, cases: dict[str, list[Case]]) -> None:
    for worker, case in enumerate(cases[name]):
        assert [fit["ended"] for fit in case.fits] == CASES[name]
        undisturbed = case.notes.get("undisturbed") or cases["undisturbed"][worker].fits[0]
        assert sum((fit["steps"] for fit in case.fits), []) == undisturbed["steps"]
        assert case.fits[-1]["digest"] == undisturbed["digest"] != ""


@pytest.mark.parametrize("name", CASES)
def test_it_leaves_the_handler_as_it_was_and_no_thread(name: str, cases: dict[str, list[Case]]) -> None:
    for case in cases[name]:
        assert case.notes["threads"] == []
        assert case.notes["handler"]


def test_the_notice_is_answered_and_then_training_has_ended(cases: dict[str, list[Case]]) -> None:
    for case in cases["ends_within_the_grace"]:
        assert case.plans == [("preempted", True), ("finished", False)]


@pytest.mark.parametrize("name", ["in_the_last_step", "in_the_last_step_with_time"])
def test_a_notice_on_the_last_step_lets_all_finish(name: str, cases: dict[str, list[Case]]) -> None:
    for case in cases[name]:
        assert [reason for reason, _ in case.plans] == ["preempted"], "the notice came after training"
        assert case.events("finish")
        assert not case.events("exit")


def test_a_notice_that_is_cancelled_ends_nothing(cases: dict[str, list[Case]]) -> None:
    for name in ("cancelled_before_the_first_save", "cancelled_after_the_first_save"):
        notified = cases[name][1]
        (withdrawn,) = notified.events("withdrawn")
        first = notified.events("commit")[0]
        assert (withdrawn["time"] < first["time"]) == ("before" in name)
        assert [case.plans for case in cases[name]] == [[("preempted", True), ("finished", False)]] * 2


def test_a_notice_after_a_cancelled_one_is_acted_on(cases: dict[str, list[Case]]) -> None:
    for case in cases["cancelled_and_noticed_again"]:
        assert case.plans == [("preempted", True), ("preempted", False), ("finished", False)]


def test_further_notices_during_the_final_save_change_nothing(cases: dict[str, list[Case]]) -> None:
    first, second = cases["again_during_the_final_save"]
    assert len(first.events("notice")) == 2
    assert len(second.events("notice")) == 1
    assert first.events("notice")[1]["time"] > first.events("hold")[0]["time"]
    assert [event["saved"] for event in first.events("exit")] == [first.events("restore")[0]["checkpoint"]]


def test_the_earliest_deadline_rules(cases: dict[str, list[Case]]) -> None:
    for case in cases["different_deadlines"]:
        assert case.plans[:3] == [("preempted", True), ("preempted", True), ("deadline", False)]
        first, second, last = case.events("commit")[:3]
        assert first["step"] < second["step"] < last["step"] == len(case.fits[0]["steps"])
    deadline = cases["different_deadlines"][1].notes["deadline"]
    late = _late(cases["different_deadlines"], deadline)
    for case in cases["different_deadlines"]:
        assert case.fits[0]["left_at"] <= deadline + late


def _late(workers: list[Case], deadline: float) -> float:
    """Seconds by which the machine, not the countdown, was late: what is promised are slow-downs up to 2 x."""
    late = 0.0
    for case in workers:
        called = case.events("plan")[2]["time"]
        ended = case.fits[0]["ended_at"]
        slowest = max(end - begin for begin, end in zip(ended, ended[1:], strict=False) if end <= called)
        save = max(event["seconds"] for event in case.events("save")[:2] + case.events("commit")[:2])
        held, left = case.events("hold")[2]["time"], case.fits[0]["left_at"]
        late = max(late, (held - called - 2 * slowest) + (left - held - 4 * save))
    return max(0.0, late)


def test_a_signal_in_a_long_step_is_heard_at_once_and_the_others_know_before_it_ends(
    cases: dict[str, list[Case]],
) -> None:
    struck, other = cases["in_a_long_step"]
    sent, ended = struck.notes["sent"], struck.notes["ended"]
    assert sent[-1] < ended
    assert ended - struck.notes["began"] >= 5.0
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


def _notice(training: Training, at: str, worker: int, *args: str) -> tuple[ClusterResult, list[float]]:
    """Runs until the workers leave after SIGTERM to one of them; when each has, in seconds since 1970."""
    with start_cluster(SCRIPT, training.workers, args=[*training.command, *args]) as running:
        running.wait_for_line(worker, at)
        running.signal(worker, 15)
        try:
            exits = running.cluster.wait(240)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{describe(running.outputs)}") from None
        now = time.time() - time.monotonic()
        result = ClusterResult([end.code for end in exits], running.outputs, 0.0)
    training.results.append(result)
    return result, [now + end.at for end in exits]


def test_two_workers_use_their_grace_and_resume_from_the_second_save(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    grace, args = 14.0, ("--no-validation", "--epochs", "6")
    training = Training(tmp_path, 2, args)
    result, gone = _notice(training, "AT batch 0 3", 1, "--grace", str(grace), "--slow", "0.5")
    result.assert_codes(PREEMPTED)
    (notice,) = training.events(1)[0]["notice"]
    deadline = notice["received_at"] + grace
    for worker in range(2):
        (told,) = training.events(worker)
        assert [plan["reason"] for plan in told["plan"]] == ["preempted", "deadline"]
        first, last = told["commit"]
        assert last["step"] > first["step"] + 1, "nothing was trained between the saves"
        assert (told["hold"][-1]["time"] - notice["received_at"]) / grace > 0.5
        assert told["exit"][0]["time"] < deadline
    assert max(gone) < deadline
    training.finish()
    saved, restored = (training.events(0)[start][kind][0] for start, kind in ((0, "exit"), (1, "restore")))
    assert restored["checkpoint"] == saved["saved"]
    training.assert_same(undisturbed(2, *args))


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(6))
def test_workers_with_any_grace_leave_in_time_and_lose_nothing(
    seed: int, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    choose = random.Random(seed)
    workers, spe = choose.choice([(2, "1"), (3, "1"), (2, "2")])
    args = ("--spe", spe, "--epochs", "6", *choose.choice([(), ("--no-validation",), ("--data", "repeat")]))
    training = Training(tmp_path, workers, args)
    at = f"AT batch {choose.randrange(2)} {2 * choose.randrange(3)}"
    grace, slow = choose.uniform(2, 20), choose.uniform(0.05, 0.6)
    doomed = choose.randrange(workers)
    result, gone = _notice(training, at, doomed, "--grace", str(grace), "--slow", str(slow))
    assert result.codes in ([PREEMPTED] * workers, [0] * workers), describe(result.outputs)
    if result.codes[0]:
        assert max(gone) < training.events(doomed)[0]["notice"][0]["received_at"] + grace
        training.finish()
    training.assert_same(undisturbed(workers, *args))
