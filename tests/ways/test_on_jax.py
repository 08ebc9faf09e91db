"""Every way that can be gone where Keras runs on JAX resumes as its column in docs/tested-combinations.md says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.ways.catalogue import callbacks, fits, models, optimizers, several_fits, structures, tuning
from tests.ways.drill import Job, absent
from tests.ways.on_jax import NOT_DRILLED, OTHERWISE, SHORT_FORM, NotOnJax, on_jax, verdict_of
from tests.ways.test_inputs import WAYS as INPUTS
from tests.ways.way import ONE, Way

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed", allow_module_level=True)

ALL = tuple(
    way
    for ways in (
        INPUTS,
        *(each.WAYS for each in (models, structures, optimizers, fits, several_fits, tuning, callbacks)),
    )
    for way in ways
)

#: The ways that are preempted as an epoch begins alone, before its iterator is made.
STRIKES = {"loop-over-training-data": ("epoch 1",)}


def parameters() -> list[object]:
    """Returns every way on JAX, for pytest: those that are not in the short form are chaos."""
    found = []
    for way in ALL:
        if (here := on_jax(way)) is None:
            continue
        marks = [] if way.name in SHORT_FORM else [pytest.mark.chaos]
        if missing := absent(way):
            marks.append(pytest.mark.skip(reason=f"not installed: {', '.join(missing)}"))
        found.append(pytest.param(here, id=way.name, marks=marks))
    return found


@pytest.mark.parametrize("way", parameters())
def test_on_jax(way: Way, tmp_path: Path) -> None:
    strikes = STRIKES.get(way.name) if way.name in SHORT_FORM else None
    Job(tmp_path, way, ONE, backend="jax").hold(strikes)


def test_what_differs_on_jax_is_a_way_of_the_catalogue() -> None:
    names = {way.name for way in ALL}
    assert {*OTHERWISE, *NOT_DRILLED, *SHORT_FORM} <= names
    assert all(not isinstance(verdict_of(way), NotOnJax) for way in ALL if way.name in SHORT_FORM)
