"""A process that has said its status is gone soon, whatever other threads do; saves in the background are kept."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster.harness import ClusterResult, describe, start_cluster
from tests.cluster.jax_training import ON_JAX

SCRIPT = Path(__file__).parent / "scripts" / "background_saves.py"
SAID = "Preempted: exiting with status 75"
GONE_WITHIN = 30.0


def left(folder: Path, what: str) -> ClusterResult:
    """Runs two processes to their end, which is there in time; returns what they have said."""
    with start_cluster(SCRIPT, 2, args=[str(folder / "run"), what], env=ON_JAX, fresh=True) as running:
        running.wait_for_line(0, SAID, 120)
        running.wait_for_line(1, SAID, 30)
        said = time.monotonic()
        for process in range(2):
            running.await_end(process, max(1.0, said + GONE_WITHIN - time.monotonic()))
        return running.wait(5).assert_codes(75)


def test_keras_orbax_checkpoint_finishes_its_save_before_the_processes_leave(tmp_path: Path) -> None:
    result = left(tmp_path, "orbax")
    assert "cannot schedule new futures" not in "".join(result.outputs), describe(result.outputs)
    saved = [path.name for path in (tmp_path / "run-orbax").iterdir()]
    assert saved == ["0"], "one save is there, and nothing that is half written"


@pytest.mark.chaos
def test_what_a_callback_holds_of_saves_in_a_pool_is_waited_for(tmp_path: Path) -> None:
    result = left(tmp_path, "pool")
    for output in result.outputs:
        assert "SAVED 0" in output, describe(result.outputs)


@pytest.mark.chaos
@pytest.mark.parametrize("what", ["thread", "submitted", "atexit", "finalized"])
def test_a_process_that_does_not_end_is_ended_with_the_status_that_it_has_said(
    what: str, tmp_path: Path
) -> None:
    result = left(tmp_path, what)
    if what != "finalized":  # Python runs no thread any more.
        assert "has not come to its end" in result.outputs[1], describe(result.outputs)
