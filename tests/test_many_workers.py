"""What a commit, a start and a plan of many workers cost: requests and bytes, which no machine changes."""

from __future__ import annotations

import threading

import pytest

from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.part_lists import PartLists
from keras_preempt.checkpoint.storage.parallel import REQUESTS
from tests.benchmarked import measured

import many_workers as many  # isort: skip

MEMBERS = 40


def test_a_start_reads_each_part_list_once_and_makes_few_other_requests() -> None:
    store, attempt = many.saved(MEMBERS)
    many.measure_commit(store, attempt, 0.0)
    asked = many.measure_start(store, MEMBERS, 0.0, tells=True).asked
    assert asked["part lists"] == MEMBERS
    assert asked["tensors"] == 4 * MEMBERS  # Each file of weights or of a worker's own: looked at, then read.
    assert asked["rest"] <= 4 * MEMBERS
    apart = many.measure_start(store, MEMBERS, 0.0, tells=False).asked
    assert apart["part lists"] == MEMBERS**2
    assert {**apart, "part lists": 0} == {**asked, "part lists": 0}


def test_a_commit_reads_each_part_list_once_and_makes_equally_few_other_requests_for_any_number() -> None:
    rest = set()
    for members in (2, MEMBERS):
        asked = many.measure_commit(*many.saved(members), delay=0.0).asked
        assert asked["part lists"] == members
        rest.add(asked["rest"])
    (count,) = rest
    assert count < 10


def test_all_part_lists_are_asked_for_before_the_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MEMBERS <= REQUESTS
    store, attempt = many.saved(MEMBERS)
    all_at_once = threading.Barrier(MEMBERS, timeout=30)
    request = many.Distant._request

    def held(self: many.Distant, name: str, count: int = 1) -> None:
        if name.endswith(".part.json"):
            all_at_once.wait()
        request(self, name, count)

    monkeypatch.setattr(many.Distant, "_request", held)
    many.measure_commit(store, attempt, 0.0)
    lists = PartLists(store, committed(store)[0])
    assert len(lists.of(list(lists.refs))) == MEMBERS


@pytest.mark.bench
def test_the_benchmark_prints_both_sides() -> None:
    rows = measured("many_workers.py", "--quick")
    before, after = rows["100 workers, before"], rows["100 workers, after"]
    assert float(after[0]) < float(before[0])
    assert float(after[1]) < float(before[1])
    assert (before[3], after[3]) == ("10,000", "100")
    assert int(after[6]) < int(before[6]) < 1000
