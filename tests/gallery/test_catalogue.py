"""The catalogue names every script, the page shows every script, and a drill that disagrees with the log fails."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.gallery.catalogue import FOLDERS, HERE, SCRIPTS, Identical, Said, Script
from tests.gallery.drilled import DIFFERENT, IDENTICAL, load_records, read

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "gallery.md"

PROMISE = (
    "keras_preempt: Watching over 1 worker in /tmp/d/undisturbed. After a preemption: bit-identical; so."
)
EXCEPTION = "keras_preempt: NOT exact after a preemption: exact except: a shuffle has no seed."
IF = "keras_preempt: After a preemption: exact if its Python code gives the same data again; so."
EXCEPT = "keras_preempt: After a preemption: exact except: the state of Own."


def test_every_script_is_in_the_catalogue_once() -> None:
    written = sorted(
        str(path.relative_to(HERE).with_suffix(""))
        for folder in FOLDERS
        for path in (HERE / folder).glob("*.py")
    )
    assert sorted(script.name for script in SCRIPTS) == written
    assert len(SCRIPTS) >= 32


def test_at_least_nine_of_ten_scripts_are_identical() -> None:
    identical = sum(isinstance(script.verdict, Identical) for script in SCRIPTS)
    assert identical >= 27
    assert identical >= 0.9 * len(SCRIPTS)


def test_a_script_of_each_verdict_is_drilled_by_every_test_run() -> None:
    short = [script for script in SCRIPTS if script.short]
    assert len(short) == 2
    assert {type(script.verdict) for script in short} == {Identical, Said}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_is_as_its_author_wrote_it_but_for_one_callback(script: Script) -> None:
    text = script.path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "it says what it is"
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [alias.name for node in imported if node.module == "keras_preempt" for alias in node.names]
    assert ours == ["PreemptionCallback"]
    assert "PreemptionCallback" in named
    assert "keras.utils.set_random_seed(" in text
    assert not {"get_state", "set_state"} & {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    }


def test_the_page_shows_every_script_with_its_verdict() -> None:
    page = PAGE.read_text(encoding="utf-8")
    seen = load_records()
    assert sorted(seen) == sorted(script.name for script in SCRIPTS)
    for script in SCRIPTS:
        assert f"`{script.path.name}`" in page
        expected = "identical" if isinstance(script.verdict, Identical) else "different"
        assert seen[script.name]["verdict"] == expected
        assert seen[script.name]["said"], "the log said nothing"


def _printed(*before: str, between: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> str:
    worker = [
        *before,
        "Epoch 1/2",
        "5/5 - 0s",
        *between,
        *(["Epoch 1/2"] if between else []),
        "Epoch 2/2",
        *after,
    ]
    lines = ["[keras-preempt] drill 1 of 2: undisturbed", *(f"[w0] {line}" for line in worker)]
    return "\n".join([*lines, "[keras-preempt] drill 2 of 2: preempted: w0 at step 3", "VERDICT: so"])


IDENTICAL_SCRIPT = Script("guides/any", "any", 0)
UNSEEN_SCRIPT = Script("guides/any", "any", 0, Identical("Own"))
SAID_SCRIPT = Script("guides/any", "any", 0, Said("shuffle"))


@pytest.mark.parametrize(
    ("script", "status", "printed", "problem"),
    [
        (IDENTICAL_SCRIPT, IDENTICAL, _printed(PROMISE), None),
        (SAID_SCRIPT, DIFFERENT, _printed(EXCEPTION), None),
        (IDENTICAL_SCRIPT, IDENTICAL, _printed(PROMISE, between=(PROMISE,)), None),
        (
            IDENTICAL_SCRIPT,
            DIFFERENT,
            _printed(PROMISE),
            "promised the same bits, and the result is another one",
        ),
        (SAID_SCRIPT, DIFFERENT, _printed(PROMISE), "promised the same bits, and the result is another one"),
        (IDENTICAL_SCRIPT, DIFFERENT, _printed(IF), "promised the same bits, and the result is another one"),
        (IDENTICAL_SCRIPT, IDENTICAL, _printed(EXCEPTION), "will not be exact, and the result is the same"),
        (IDENTICAL_SCRIPT, IDENTICAL, _printed(EXCEPT), "something like 'bit-identical'"),
        (UNSEEN_SCRIPT, IDENTICAL, _printed(EXCEPT), None),
        (UNSEEN_SCRIPT, DIFFERENT, _printed(EXCEPT), "expected the result to be the same"),
        (UNSEEN_SCRIPT, IDENTICAL, _printed(PROMISE), "something like 'Own'"),
        (IDENTICAL_SCRIPT, IDENTICAL, _printed(), "promised nothing"),
        (IDENTICAL_SCRIPT, IDENTICAL, _printed(PROMISE, between=("Trained.",)), None),
        (IDENTICAL_SCRIPT, DIFFERENT, _printed(PROMISE, between=("Trained.",)), "promised the same bits"),
        (IDENTICAL_SCRIPT, IDENTICAL, _printed(PROMISE, between=(EXCEPTION,)), "will not be exact"),
        (IDENTICAL_SCRIPT, IDENTICAL, "", "promised nothing"),
        (SAID_SCRIPT, DIFFERENT, _printed(PROMISE, after=(EXCEPTION,)), "said too late"),
        (SAID_SCRIPT, DIFFERENT, _printed(EXCEPT), "something like 'shuffle'"),
        (SAID_SCRIPT, IDENTICAL, _printed(PROMISE), "expected the result to be another one"),
        (IDENTICAL_SCRIPT, 3, _printed(PROMISE), "status 3"),
    ],
)
def test_a_log_that_disagrees_with_the_drill_is_a_problem(
    script: Script, status: int, printed: str, problem: str | None
) -> None:
    found = read(status, printed).problems(script)
    assert (not found) if problem is None else any(problem in each for each in found), found


def test_a_fit_of_one_epoch_begins_with_its_progress() -> None:
    bar = "\x1b[1m5/5\x1b[0m \x1b[32m━━━━\x1b[0m 0s 3ms/step - loss: 0.5"
    lines = [bar, PROMISE, bar, "Score 0.5", EXCEPTION, "5/5 - 0s - 3ms/step - loss: 0.4"]
    printed = "\n".join(["drill 1 of 2", *(f"[w0] {line}" for line in lines), "drill 2 of 2"])
    outcome = read(DIFFERENT, printed)
    assert [len(each) for each in outcome.said] == [1, 1]
    assert not outcome.late
    assert outcome.denied
    assert not outcome.promised
