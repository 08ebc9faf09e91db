"""Which processes write which compiled programs; tests/cluster/test_compile_cache.py has two real ones."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import jax
import pytest

from keras_preempt.backend.jax import compiled_programs

WRITE, PUT = compiled_programs._WRITE, compiled_programs._PUT


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What is written: by JAX's own function with "own" before its key."""
    found: list[str] = []

    def own(
        cache_key: str,
        compile_time_secs: float,
        module_name: str,
        backend: Any,
        executable: Any,
        host_callbacks: Any,
    ) -> None:
        found.append(f"own {cache_key}")

    compiler, cache = (
        importlib.import_module(f"jax._src.{name}") for name in ("compiler", "compilation_cache")
    )
    monkeypatch.setattr(compiler, WRITE, own)
    monkeypatch.setattr(cache, PUT, lambda key, *rest: found.append(key))
    monkeypatch.setenv("KERAS_PREEMPT_STATUS_DIR", str(tmp_path / "00003"))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled" / "w1"))
    return found


def write(key: str, process: int, seconds: float = 2.0, host_callbacks: tuple[object, ...] = ()) -> None:
    function = getattr(importlib.import_module("jax._src.compiler"), WRITE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "process_index", lambda: process)
        function(key, seconds, "jit_step", None, None, host_callbacks)


def test_under_the_launcher_every_process_writes(written: list[str]) -> None:
    compiled_programs.keep_by_every_process()
    compiled_programs.keep_by_every_process()
    write("a", 0)
    write("b", 1)
    assert written == ["own a", "b"]


def test_what_jax_would_not_write_is_not_written(written: list[str]) -> None:
    compiled_programs.keep_by_every_process()
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, 1.0)
    try:
        write("short", 1, seconds=0.5)
        write("long", 1, seconds=1.5)
    finally:
        jax.config.update(name, before)
    write("calls", 1, host_callbacks=(print,))
    assert written == ["long"]


def test_a_program_that_cannot_be_written_is_no_error(
    written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(*arguments: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(importlib.import_module("jax._src.compilation_cache"), PUT, put)
    compiled_programs.keep_by_every_process()
    write("b", 1)
    assert written == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KERAS_PREEMPT_STATUS_DIR", None),
        ("JAX_COMPILATION_CACHE_DIR", None),
        ("JAX_COMPILATION_CACHE_DIR", "gs://bucket/compiled"),
    ],
)
def test_jax_is_left_alone_without_a_folder_of_the_launchers(
    name: str, value: str | None, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    compiled_programs.keep_by_every_process()
    write("b", 1)
    assert written == ["own b"]


def test_a_jax_that_hands_over_no_calls_of_python_is_known(
    written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As JAX from 0.12 on."""

    def own(
        cache_key: str, compile_time_secs: float, module_name: str, backend: Any, executable: Any
    ) -> None:
        written.append(f"own {cache_key}")

    compiler = importlib.import_module("jax._src.compiler")
    monkeypatch.setattr(compiler, WRITE, own)
    compiled_programs.keep_by_every_process()
    for process in (0, 1):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        getattr(compiler, WRITE)(f"of {process}", 2.0, "jit_step", None, None)
    assert written == ["own of 0", "of 1"]


def test_a_jax_that_hands_over_something_else_is_left_alone(
    written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def own(cache_key: str, compile_time_secs: float, module_name: str, executable: Any) -> None:
        written.append(f"own {cache_key}")

    compiler = importlib.import_module("jax._src.compiler")
    monkeypatch.setattr(compiler, WRITE, own)
    compiled_programs.keep_by_every_process()
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    getattr(compiler, WRITE)("a", 2.0, "jit_step", None)
    assert written == ["own a"]


def test_a_jax_that_has_other_names_is_left_alone(
    written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(importlib.import_module("jax._src.compilation_cache"), PUT)
    compiled_programs.keep_by_every_process()
    write("b", 1)
    assert written == ["own b"]
