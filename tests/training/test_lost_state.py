"""An error that ends a resumed fit is connected with the callback whose state was not kept over the restart."""

from __future__ import annotations

import io
import re
import traceback
from pathlib import Path
from typing import Any

import keras
import pytest

from tests import preempted
from tests.fits import Stateless

IN_EPOCH = ("on_train_batch_begin", 8)


class WritesText(keras.callbacks.Callback):
    """Gathers lines in a text that is open, and reads the first one of training again."""

    def __init__(self) -> None:
        super().__init__()
        self.text = io.StringIO()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            self.text.write("first,second")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.first(self.text.getvalue().split(",")[1])

    def on_train_end(self, logs: Any = None) -> None:
        self.first(self.text.getvalue().split(",")[1])

    def first(self, line: str) -> str:
        return line


class AtTheEnd(WritesText):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        pass


class SetLater(keras.callbacks.Callback):
    """Has an open text only once training has begun."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            self.text = io.StringIO("first,second")

    def on_test_end(self, logs: Any = None) -> None:
        self.text.getvalue()


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each for each in caplog.messages if "was not kept over the restart" in each]


@pytest.mark.parametrize(
    ("kind", "error", "named"),
    [
        (WritesText, IndexError, "WritesText (its attribute text: StringIO)"),
        (AtTheEnd, IndexError, "AtTheEnd (its attribute text: StringIO)"),
        (SetLater, AttributeError, "SetLater (its attribute text)"),
    ],
)
def test_the_error_of_a_callback_that_misses_its_state_is_told_of_once_and_raised_as_it_is(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: type[keras.callbacks.Callback],
    error: type[Exception],
    named: str,
) -> None:
    assert preempted.start(tmp_path, lambda: [kind()], IN_EPOCH) is None
    assert not told(caplog)
    with pytest.raises(error) as raised:
        preempted.start(tmp_path, lambda: [kind()])
    assert [each for each in told(caplog) if f"restart: {named}." in each] == told(caplog) != []
    assert len(told(caplog)) == 1
    assert re.search(r"get_state\(\).*set_state\(state\)", told(caplog)[0])
    assert raised.value.__cause__ is None
    assert kind.__name__ in {type(frame.f_locals.get("self")).__name__ for frame, _ in walked(raised.value)}


def walked(error: BaseException) -> Any:
    return traceback.walk_tb(error.__traceback__)


class Raises(keras.callbacks.Callback):
    """Holds what is not kept, and is not where the error is raised."""

    def __init__(self) -> None:
        super().__init__()
        self.text = io.StringIO()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.text.write("more")


class Fails(Stateless):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 2:
            raise KeyError("of its own")


class Resets(WritesText):
    """Fails in a fit that was never resumed."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        pass


def test_other_errors_are_not_connected_with_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(IndexError):
        preempted.start(tmp_path / "new", lambda: [Resets()])
    assert not told(caplog)
    assert preempted.start(tmp_path / "run", lambda: [Raises(), Fails()], IN_EPOCH) is None
    with pytest.raises(KeyError, match="of its own"):
        preempted.start(tmp_path / "run", lambda: [Raises(), Fails()])
    assert not told(caplog)
