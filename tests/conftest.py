"""What all tests have in common."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_preempt.process import environment

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


_HERE = Path(__file__).parent
_OF_PROCESSES = ("cluster", "gallery", "ways")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spreads the files that start processes of their own evenly over a run, but for its last part.

    They take most of the time, with few tests each. One after the other, in the order of their names, several of them
    compete for the processors at once, and at the end one alone keeps the run waiting.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    places: dict[Path, float] = {}
    long = [path for path in files if path.parent == _HERE or path.parent.name in _OF_PROCESSES]
    short = [path for path in files if path not in long]
    for kind, until in ((long, 0.9), (short, 1.0)):
        places.update({path: until * number / len(kind) for number, path in enumerate(kind)})
    items[:] = [item for path in sorted(files, key=lambda path: places[path]) for item in files[path]]


@pytest.fixture(scope="module")
def fresh_keras() -> None:
    """For tests of Keras as it is installed: ends what fits of earlier tests in this process have left behind."""
    import tensorflow as tf  # Here, since most tests do without.

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
    fits = sys.modules.get("keras_preempt.training.several_fits")  # Most tests do without it.
    if fits is not None:
        fits.take_notices()
