"""Where two recorded runs part is found by worker, restart and step, and the cause is told by what lies before it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.cli.drill.cause import describe_parting, likely_causes, uncovered
from keras_preempt.cli.drill.comparison import Parting, find_parting
from keras_preempt.cli.drill.step_records import RunRecord, read_run_record
from keras_preempt.drilled.places import record_name

Lines = list[dict[str, Any]]


def lines(first: int, last: int, wrong_from: int | None = None, exact: bool = True, why: str = "") -> Lines:
    """The record of one worker from step `first` to step `last`."""
    restored = "x" if first else ""
    found: Lines = [{"what": "begin", "step": first, "restored": restored, "exact": exact, "why": why}]
    for step in range(first, last + 1):
        wrong = wrong_from is not None and step >= wrong_from
        found.append(
            {
                **{"what": "at", "phase": "train", "epoch": step // 5, "batch": step % 5, "step": step},
                "digests": {"metrics": "same", "weights": "wrong" if wrong else f"{step}"},
                "logs": {"loss": float(step) + (0.25 if wrong else 0.0)},
            }
        )
    return found


def begun(found: Lines, **fields: Any) -> Lines:
    """A record that begins with further fields."""
    begin, *rest = found
    return [{**begin, **fields}, *rest]


def run(*incarnations: Lines, workers: int = 1) -> RunRecord:
    return RunRecord([[incarnation] * workers for incarnation in incarnations])


UNDISTURBED = run(lines(0, 10))


def test_equal_runs_do_not_part_also_where_steps_were_run_twice() -> None:
    assert find_parting(UNDISTURBED, run(lines(0, 7), lines(4, 10))) is None


def test_an_epoch_that_begins_at_the_step_at_which_the_one_before_ended_is_another_place() -> None:
    def at(epoch: int, batch: int, metrics: str) -> dict[str, Any]:
        place = {"phase": "train", "epoch": epoch, "batch": batch, "step": 5}
        return {"what": "at", **place, "digests": {"metrics": metrics}, "logs": {}}

    begin = lines(0, 0)[:1]
    ended, begun = at(0, 5, "of the epoch"), at(1, 0, "none yet")
    undisturbed = run([*begin, ended, begun])
    # Preempted in the validation between the two.
    assert find_parting(undisturbed, run([*begin, ended], [*begin, begun])) is None
    parting = find_parting(undisturbed, run([*begin, ended], [*begin, at(1, 0, "wrong")]))
    assert parting is not None
    assert (parting.incarnation, parting.epoch) == (1, 1)


def test_batches_are_compared_one_by_one_where_gradients_are_accumulated() -> None:
    def at(batch: int, weights: str) -> dict[str, Any]:
        place = {"phase": "train", "epoch": 0, "batch": batch, "step": batch // 4}
        return {"what": "at", **place, "digests": {"weights": weights}, "logs": {}}

    begin = lines(0, 0)[:1]
    undisturbed = run([*begin, *(at(batch, f"after {batch}") for batch in range(8))])
    before = [*begin, *(at(batch, f"after {batch}") for batch in range(3))]
    assert find_parting(undisturbed, run(before, [*begin, at(3, "after 3"), at(4, "after 4")])) is None
    parting = find_parting(undisturbed, run(before, [*begin, at(3, "after 3"), at(4, "wrong")]))
    assert parting is not None
    assert (parting.incarnation, parting.step) == (1, 1)


def test_runs_part_at_the_first_step_that_differs() -> None:
    parting = find_parting(UNDISTURBED, run(lines(0, 4), lines(4, 10, wrong_from=6)))
    assert parting == Parting(0, 1, 6, 1, 4, 5, ("weights",), {"loss": (6.0, 6.25)})
    told = describe_parting(parting, 1)
    differ = "the runs differ: weights; loss 6.0 and 6.25."
    assert f"After step 5 was equal, from step 6 on (epoch 1, w0) {differ}" in told
    assert "2 steps after it continued at step 4, restart 1 of 1" in told


def test_the_worker_that_differs_first_is_named() -> None:
    both = RunRecord([[lines(0, 10, wrong_from=8), lines(0, 10, wrong_from=6)]])
    parting = find_parting(run(lines(0, 10), workers=2), both)
    assert parting is not None
    assert (parting.member, parting.step) == (1, 6)


def test_steps_with_digests_in_only_one_run_are_skipped() -> None:
    sparse = [line for line in lines(0, 10, wrong_from=6) if line.get("step", 0) % 3 == 0]
    parting = find_parting(UNDISTURBED, run(sparse))
    assert parting is not None
    assert (parting.equal_until, parting.step) == (3, 6)
    assert "Between step 3, which was equal, and step 6" in describe_parting(parting, 0)


def causes(
    *incarnations: Lines, record: RunRecord | Lines = UNDISTURBED, repeatable: bool | None = None
) -> str:
    """The causes that are named of a run with these incarnations; without any, no step differs."""
    parting = find_parting(UNDISTURBED, run(*incarnations)) if incarnations else None
    record = run(record) if isinstance(record, list) else record
    return "\n".join(likely_causes(parting, record, repeatable))


#: A run that differs from a while after its restart on.
DRIFTS = (lines(0, 4), lines(4, 10, wrong_from=6))
WRONG_AT_THE_RESTART = (lines(0, 4), lines(4, 10, wrong_from=4))

#: The record of a run whose input is not promised to be the same again.
DOUBTED = lines(0, 10, exact=False, why="1 shuffle has no seed")
WARM = begun(lines(0, 10), unsaved=["Warm"])


def test_a_step_that_draws_is_not_called_the_input() -> None:
    doubts = ["the training step draws random numbers", "1 shuffle has no seed"]
    told = causes(*DRIFTS, record=begun(lines(0, 10, exact=False), why=doubts))
    assert "Likely cause: the training step draws random numbers." in told
    assert "Other possible cause: the input. 1 shuffle has no seed." in told
    assert causes(*DRIFTS, record=lines(0, 10, exact=False, why="; and ".join(doubts))) == told, (
        "as 0.2 has it"
    )


def test_a_doubt_is_one_cause_whatever_its_words_are() -> None:
    doubt = "the training step draws; and so on"
    record = run(begun(lines(0, 10, exact=False), why=[doubt, "the shuffle"]))
    assert record.input_doubts == [doubt, "the shuffle"]
    assert record.trained()[0].doubts == [doubt, "the shuffle"]


def test_of_a_step_that_cannot_be_looked_at_its_condition_is_named() -> None:
    told = causes(
        *DRIFTS, record=begun(lines(0, 10), condition="the training step draws from keras.random alone")
    )
    assert 'Likely cause: the log says "exact if", and this may not hold: the training step draws' in told


def test_a_difference_before_the_first_preemption_is_the_scripts_own() -> None:
    told = causes(lines(0, 4, wrong_from=3), lines(4, 10, wrong_from=4))
    assert "The script does not repeat itself" in told
    assert "enable_op_determinism" in told
    assert "--twice" not in told


def test_a_difference_at_the_very_beginning_is_a_missing_seed_or_what_comes_before_it() -> None:
    told = causes(lines(0, 4, wrong_from=0), record=DOUBTED)
    assert "The initial state differs already" in told
    assert "If the script sets no seed, call keras.utils.set_random_seed" in told
    assert "If it does, something before the first step differs from start to start" in told
    assert "shuffle" not in told


def test_a_difference_at_the_restart_is_a_state_that_was_not_restored_or_a_missing_seed() -> None:
    assert "something was not saved or not restored" in causes(*WRONG_AT_THE_RESTART)
    assert "something was not saved" not in causes(lines(0, 4), lines(0, 10, wrong_from=0))


SHARED = begun(lines(0, 10), shared=["both come from one shuffle"])
PYTHON = "Python code (tf.py_function) in an input pipeline (f)"
RANDOM = "the stateful random operation RandomUniform in the training step (f)"


def with_source(source: str) -> Lines:
    return [*lines(0, 10), {"what": "sources", "found": [source]}]


@pytest.mark.parametrize(
    ("record", "likely", "also"),
    [
        (DOUBTED, "the input. 1 shuffle has no seed.", ""),
        (SHARED, "both come from one shuffle.", "Shuffle after the split"),
        (WARM, "callbacks whose state is not kept: Warm.", "Give them get_state()"),
        (with_source(PYTHON), PYTHON, "If it uses random numbers or keeps state"),
        (with_source(RANDOM), RANDOM, "use a keras.random.SeedGenerator"),
    ],
)
def test_what_was_recorded_of_the_script_is_the_likely_cause_with_its_cure(
    record: Lines, likely: str, also: str
) -> None:
    told = causes(*DRIFTS, record=record)
    assert told.startswith(f"Likely cause: {likely}")
    assert also in told
    assert "Python variable in a layer" not in told


def test_callbacks_whose_state_is_not_kept_do_not_explain_a_difference_before_the_restart() -> None:
    assert "Warm" not in causes(lines(0, 4, wrong_from=2), record=WARM)


def test_without_a_trace_of_a_cause_the_usual_ones_are_named_with_the_next_step() -> None:
    told = causes(*DRIFTS)
    assert "such as a Python variable in a layer" in told
    assert "add --twice to find out" in told
    assert "without preemptions the script repeats itself" in causes(repeatable=True)
    assert "The script does not repeat itself" in causes(repeatable=False)


def test_files_that_the_first_run_left_for_the_second_are_named_first_where_no_step_differs() -> None:
    told = likely_causes(None, UNDISTURBED, None, written="log.csv")
    found = "files that the first run left and the second one found: log.csv"
    assert told[0].startswith(f"Likely cause: {found}")
    assert "Add --isolate" in told[0]
    parting = find_parting(UNDISTURBED, run(*DRIFTS))
    told = likely_causes(parting, run(DOUBTED), None, written="log.csv")
    assert told[0].startswith("Likely cause: the input.")
    assert told[1].startswith("Other possible cause: files that the first run left")


def test_a_worker_that_was_killed_while_it_saved_is_the_cause() -> None:
    parting = find_parting(UNDISTURBED, run(*WRONG_AT_THE_RESTART))
    why = "w0 continued from the part of w1 in x"
    (told,) = likely_causes(parting, UNDISTURBED, None, [why])
    assert told.startswith(f"Cause: {why}")


def write(
    folder: Path, incarnation: int, member: int, found: Sequence[dict[str, Any]], tail: str = ""
) -> None:
    text = "".join(json.dumps(line) + "\n" for line in found) + tail
    (folder / record_name(incarnation, member)).write_text(text)


def test_a_record_that_was_cut_by_a_kill_shows_how_far_it_came(tmp_path: Path) -> None:
    write(tmp_path, 0, 0, lines(0, 7), tail='{"what": "at", "st')
    write(tmp_path, 0, 1, lines(0, 6))
    write(tmp_path, 1, 0, lines(4, 10))
    record = read_run_record(tmp_path, 3, 2)
    assert [record.steps_run(number) for number in range(4)] == [7, 6, 0, 0]
    went_on = [record.where(number) for number in range(3)]
    assert [fit and fit.first for fit in went_on] == [0, 4, None]
    assert [fit and fit.restored for fit in went_on] == ["", "x", None]
    assert record.steps_run_again() == 3
    assert record.names() == [""]


def test_validations_are_recorded_with_their_last_batch() -> None:
    seen = {"what": "at", "phase": "validation", "epoch": 0}
    validated = [{**seen, "batch": batch, "step": step} for step in (5, 10) for batch in (0, 0, 1)]
    assert run([*lines(0, 10), *validated]).fits(0)[0].validations == [(5, 1), (10, 1)]


def of_fit(name: str, found: Lines) -> Lines:
    return begun(found, fit=name, directory=name)


def test_each_fit_is_compared_with_itself_and_the_first_that_differs_is_named() -> None:
    first = run([*of_fit("a", lines(0, 6)), *of_fit("b", lines(0, 8))])
    went_on = [*of_fit("a", lines(3, 6)), *of_fit("b", lines(0, 8, wrong_from=5))]
    parting = find_parting(first, run(of_fit("a", lines(0, 3)), went_on))
    assert parting is not None
    assert (parting.fit, parting.fits, parting.step, parting.incarnation) == (2, 2, 5, 1)
    told = describe_parting(parting, 1)
    assert "from step 5 on (fit 2 of 2, epoch 1, w0) the runs differ" in told
    assert "That fit began after restart 1 of 1, from its beginning." in told


def test_steps_are_lost_only_if_they_were_run_and_run_again() -> None:
    stopped_later = run(of_fit("a", lines(0, 4)), of_fit("a", lines(4, 25)))
    assert stopped_later.steps_run_again() == 0
    second = [*of_fit("a", lines(4, 9)), *of_fit("b", lines(0, 3))]
    again = run(of_fit("a", lines(0, 6)), second, of_fit("b", lines(1, 8)))
    assert again.steps_run_again() == 2 + 2


def test_what_identical_does_not_cover_is_named_and_nothing_else() -> None:
    assert uncovered(UNDISTURBED, 1) == []
    found = begun(DOUBTED, unsaved=["Warm"])
    record = run([*found, {"what": "sources", "found": ["Python code (f)"]}])
    callbacks, data, source = uncovered(record, 2)
    assert "(Warm): 2 preemptions made no difference" in callbacks
    assert "the input (1 shuffle has no seed)" in data
    assert source.startswith("Python code (f)")


def test_a_fit_without_an_epoch_left_counts_for_nothing() -> None:
    begin = {**of_fit("b", lines(0, 0))[0], "step": 6}
    record = run([*of_fit("a", lines(0, 6)), begin, *of_fit("c", lines(0, 3))])
    assert [fit.name for fit in record.trained()] == ["a", "c"]
