"""What workers hold in the memory of their machines, and what that comes to together."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_preempt.checkpoint import machine_memory
from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.machine_memory import MachineMemory, put_together
from keras_preempt.process import environment
from tests.checkpoint.builders import held


@given(
    st.integers(1, 5).flatmap(
        lambda n: st.lists(st.sets(st.integers(0, n - 1), min_size=1), min_size=n, max_size=n)
    )
)
def test_what_workers_hold_is_whole_exactly_if_some_worker_holds_each_part(holdings: list[set[int]]) -> None:
    members = len(holdings)
    found = put_together([(worker, held(members, parts)) for worker, parts in enumerate(holdings)])
    assert (found is not None) == (set.union(*holdings) == set(range(members)))
    if found is not None:
        manifest, givers = found
        assert [ref.member for ref in manifest.parts] == list(range(members))
        assert (manifest.writers, manifest.missing) == (tuple(range(members)), ())
        assert all(part in holdings[worker] for part, worker in givers.items())
        # Nothing is sent that a worker has itself.
        assert all(givers[part] == part for part in range(members) if part in holdings[part])


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    one, other = MachineMemory(tmp_path, "run", 0), MachineMemory(tmp_path, "run", 0)
    one.claim()
    one.claim()  # Its own.
    with pytest.raises(StoreUnavailable, match="another has it"):
        other.claim()
    one.close()
    other.claim()
    other.remove()
    assert not list(tmp_path.iterdir())


def test_a_forked_child_does_not_hold_what_its_parent_removes(tmp_path: Path) -> None:
    memory = MachineMemory(tmp_path, "run", 0)
    memory.claim()
    context = multiprocessing.get_context("fork")
    begun, end = context.Event(), context.Event()
    child = context.Process(target=lambda: (begun.set(), end.wait()))
    child.start()
    begun.wait()
    try:
        with pytest.raises(StoreUnavailable, match="another has it"):
            MachineMemory(tmp_path, "run", 0).claim()
        memory.remove()
        assert not list(tmp_path.iterdir())
    finally:
        end.set()
        child.join()


def test_what_a_job_has_left_goes_with_its_launcher_or_with_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def left_by(run: str, launcher: Path | None) -> Path:
        if launcher is None:
            monkeypatch.delenv(environment.STATUS_DIR, raising=False)
        else:
            launcher.mkdir()
            monkeypatch.setenv(environment.STATUS_DIR, str(launcher / "00000"))
        memory = MachineMemory(tmp_path / "memory", run, 0)
        memory.claim()
        memory.close()
        return memory.run

    (tmp_path / "memory").mkdir()
    by_hand = left_by("by hand", None)
    running = left_by("running", tmp_path / "one")
    crashed = left_by("crashed", tmp_path / "two")
    (tmp_path / "two").rmdir()
    fit = MachineMemory(tmp_path / "memory", "another", 0)
    fit.claim()
    assert by_hand.exists()  # Somebody may start that run again.
    assert running.exists()
    assert not crashed.exists()
    machine_memory.remove_left_by(tmp_path / "one", tmp_path / "memory")
    assert not running.exists()
    assert by_hand.exists()
    fit.remove()
    assert fit.base.exists()


def test_memory_of_another_user_is_refused(tmp_path: Path) -> None:
    memory = MachineMemory(tmp_path, "run", 0)
    memory.base.mkdir(mode=0o700)
    if os.getuid() != 0:
        pytest.skip("only root can give a directory to another user")
    os.chown(memory.base, 12345, 12345)
    with pytest.raises(StoreUnavailable, match="this user alone"):
        memory.claim()
    assert not list(memory.base.iterdir())


def test_a_job_that_ends_at_this_moment_does_not_keep_another_from_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = MachineMemory(tmp_path, "run", 0)
    made = machine_memory._make_private
    removed: list[Path] = []

    def make(folder: Path) -> None:
        made(folder)
        if len(removed) < 2 and folder not in removed:  # As `remove` of the other one: what is empty.
            folder.rmdir()
            removed.append(folder)

    monkeypatch.setattr(machine_memory, "_make_private", make)
    memory.claim()
    assert removed == [memory.base, memory.run]
    assert memory.store.path.is_dir()
    memory.close()
