"""What JAX compiles in one start under the launcher, the next one loads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from keras_preempt.cluster import RestartPolicy, Supervisor
from keras_preempt.cluster.compile_cache import compile_cache

PLACE, ENABLED = "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"
LEAST = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (PLACE, ENABLED, LEAST):
        monkeypatch.delenv(name, raising=False)


def test_it_is_below_the_launchers_folder_and_takes_every_program(tmp_path: Path) -> None:
    assert compile_cache(tmp_path, 1) == {PLACE: str(tmp_path / "compiled" / "w1"), LEAST: "0"}


@pytest.mark.parametrize(
    ("name", "value"), [(PLACE, "gs://bucket/compiled"), (PLACE, ""), (ENABLED, "false"), (ENABLED, "0")]
)
def test_what_the_user_has_chosen_stands(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert compile_cache(tmp_path, 0) == {}


def test_the_users_least_time_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEAST, "2")
    assert compile_cache(tmp_path, 0)[LEAST] == "2"


PROGRAM = """
import os, sys
import jax
import keras_preempt
if len(sys.argv) > 1:
    place = {name: os.environ.get(f"KERAS_DISTRIBUTION_{name}") for name in ("JOB_ADDRESSES", "PROCESS_ID")}
    first = place["JOB_ADDRESSES"].split(",")[0]
    jax.distributed.initialize(first, 2, int(place["PROCESS_ID"]))
found = []
jax.monitoring.register_event_listener(lambda event, **rest: found.append(event.rpartition("/")[2]))
value = jax.jit(lambda x: (x @ x.T).sum() * 3)(jax.numpy.ones((8, 8)))
print("loaded", found.count("cache_hits") > 0, float(value), flush=True)
sys.exit(75 if os.environ["KERAS_PREEMPT_LAUNCHER_INCARNATION"] == "0" else 0)
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_the_second_start_loads_what_each_worker_has_compiled_in_the_first(
    workers: int, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    lines: list[tuple[int, str]] = []
    supervisor = Supervisor(
        workers,
        [sys.executable, str(script), *["together"] * (workers - 1)],
        policy=RestartPolicy(max_restarts_without_progress=1),
        log=lambda index, line: lines.append((index, line)),
        environment=lambda number: {"JAX_PLATFORMS": "cpu"},
    )
    assert supervisor.run().exit_code == 0, lines
    for worker in range(workers):
        assert [line for index, line in lines if index == worker and line.startswith("loaded")] == [
            "loaded False 1536.0",
            "loaded True 1536.0",
        ]


def test_a_place_named_for_one_start_stands(tmp_path: Path) -> None:
    lines: list[str] = []
    program = f"import os; print(os.environ['{PLACE}'])"
    supervisor = Supervisor(
        1,
        [sys.executable, "-c", program],
        log=lambda index, line: lines.append(line),
        environment=lambda number: {PLACE: "gs://bucket/compiled"},
    )
    assert supervisor.run().exit_code == 0
    assert lines == ["gs://bucket/compiled"]
