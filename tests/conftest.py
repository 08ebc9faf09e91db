"""What all tests have in common."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from keras_preempt.process import environment
from tests import durations, stages

try:
    from hypothesis import settings
except ImportError:  # The canaries are run without it, too.
    pass
else:
    # An example takes longer where others work as well.
    settings.register_profile("any machine", deadline=None)
    settings.load_profile("any machine")

# A machine that tests run on may be in a cloud whose notices are no business of a test.
os.environ.setdefault(environment.PLATFORM, "generic")

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # Under nohup, the processes that a test starts would ignore SIGHUP, too. A handler is not inherited by them.
    signal.signal(signal.SIGHUP, lambda number, frame: None)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("stages of make test", "see tests/stages.py")
    group.addoption("--stage", type=int, help="run only what belongs to the stage of this number, from 0")
    group.addoption("--stage-report", type=Path, help="write what the tests took to this file")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return  # One of several processes; what follows is for all of them.
    if config.option.stage != stages.WITHOUT_BACKEND and not config.option.collectonly:
        from tests.cluster.forked import ForkServers  # Here, since it costs a moment.

        config.add_cleanup(ForkServers().close)
    if config.option.stage_report:
        config.pluginmanager.register(durations.Measured(config.option.stage, config.option.stage_report))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not even import the files of other stages."""
    stage = config.option.stage
    if stage is None or collection_path.suffix != ".py" or stages.stage_of(collection_path) == stage:
        return None
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Starts with the files of a stage that take longest, so that none keeps the run waiting at its end."""
    if config.option.stage == stages.WITHOUT_BACKEND and has_backend():
        raise pytest.UsageError(
            "A file of the first stage imports TensorFlow or JAX: name it in tests/stages.py."
        )
    if config.option.stage is not None:
        taken = {file: durations.seconds_of(tests) for file, tests in durations.load()["tests"].items()}
        items.sort(key=lambda item: -taken.get(item.nodeid.partition("::")[0], 0.0))


def pytest_collection_finish() -> None:
    """Takes what is imported out of every collection of garbage, in which it would take most of the time."""
    gc.collect()
    gc.freeze()


def has_backend() -> bool:
    """Whether TensorFlow or JAX is imported in this process."""
    return not {"tensorflow", "jax"}.isdisjoint(sys.modules)


@pytest.fixture(autouse=True)
def first_stage_imports_no_backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """What imports TensorFlow or JAX belongs to a later stage."""
    had = has_backend()
    yield
    if request.config.option.stage == stages.WITHOUT_BACKEND:
        assert had or not has_backend(), "imports TensorFlow or JAX: name its file in tests/stages.py"


@pytest.fixture(scope="module", autouse=True)
def what_a_file_keeps_goes_with_it() -> Iterator[None]:
    """A model that is compiled once for a file (`functools.cache`) keeps Keras repaired for as long as it lives.

    The file may have it from a helper, such as `tests.preempted`.
    """
    yield
    for name, module in list(sys.modules.items()):
        if name.startswith("tests."):
            for kept in list(vars(module).values()):
                # A module that is imported late (`tests.ways.late`) would be imported by the question.
                if (
                    not isinstance(kept, ModuleType)
                    and hasattr(kept, "cache_clear")
                    and not kept.__module__.startswith("keras_preempt")
                ):
                    kept.cache_clear()


@pytest.fixture(scope="module")
def fresh_keras() -> None:
    """For tests of Keras as it is installed: ends what fits of earlier tests in this process have left behind."""
    import tensorflow as tf  # Here, since most tests do without.

    for name in ("last_type", "last_value", "last_traceback"):  # Of a test that failed: it keeps its model.
        vars(sys).pop(name, None)
    for _ in range(3):  # Keras stays repaired for as long as a model lives; one may keep the next.
        gc.collect()
    tf.random.set_seed(None)


_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_STATUS = Path("/proc/self/status")


def unheard() -> dict[str, list[str]]:
    """Which signals that end a process are ignored or blocked, as the system has it; nothing where it does not say."""
    if not _STATUS.exists():
        return {}
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    masks = {"ignored": int(fields["SigIgn"], 16), "blocked": int(fields["SigBlk"], 16)}
    return {how: [each.name for each in _ENDING if mask >> (each - 1) & 1] for how, mask in masks.items()}


_AT_FIRST = unheard()


@pytest.fixture(autouse=True)
def signals_are_heard_in_the_next_test() -> Iterator[None]:
    """Processes inherit what is ignored or blocked, and those of a later test would not hear the signals it sends."""
    yield
    assert unheard() == _AT_FIRST


@pytest.fixture(autouse=True)
def garbage_is_collected_in_the_next_test() -> Iterator[None]:
    """A fit holds that off while it saves, and must let it go however it ends."""
    yield
    assert gc.isenabled()


@pytest.fixture(autouse=True)
def no_notice_for_the_next_test() -> Iterator[None]:
    """What a fit has heard and not answered is kept for the next one of its process, which is another test's here."""
    yield
    fits = sys.modules.get("keras_preempt.training.run.several_fits")  # Most tests do without it.
    if fits is not None:
        fits.late_signals.clear()
