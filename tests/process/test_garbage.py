"""Garbage is not collected while somebody holds that off, and is again afterwards."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from keras_preempt.process.garbage import GarbageCollection


@pytest.fixture(autouse=True)
def _enabled() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


def test_it_is_held_off_until_the_last_holder_lets_it_go() -> None:
    one, another = GarbageCollection(), GarbageCollection()
    seen = []
    for holder, held in [(one, True), (one, True), (another, True), (one, False), (another, False)]:
        holder.hold_off(held=held)
        seen.append(gc.isenabled())
    assert seen == [False, False, False, False, True]
    one.hold_off(held=False)  # It holds nothing.
    assert gc.isenabled()


def test_what_the_program_has_switched_off_stays_off() -> None:
    gc.disable()
    one = GarbageCollection()
    one.hold_off(held=True)
    one.hold_off(held=False)
    assert not gc.isenabled()


@pytest.mark.parametrize("enabled", [True, False])
def test_a_forked_child_collects_as_its_parent_did_before(enabled: bool) -> None:
    if not enabled:
        gc.disable()
    one = GarbageCollection()
    one.hold_off(held=True)
    child = os.fork()
    if child == 0:
        os._exit(int(gc.isenabled()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == int(enabled)
    assert not gc.isenabled()
    one.hold_off(held=False)
    assert gc.isenabled() == enabled
