"""What a launcher that watches sees of a fit: each phase at its time, and the steps done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

from keras_preempt.process import heartbeat
from keras_preempt.process.environment import STATUS_DIR, WORKER
from keras_preempt.process.heartbeat import Phase
from tests.cluster.small_fit import STEPS, InEpochs, fit, make_data


class Sees(InEpochs):
    """Looks as the launcher does, while the hooks of others run."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file
        self.seen: list[tuple[str, Phase, int]] = []

    def look(self, hook: str) -> heartbeat.Beat:
        beat = heartbeat.read_beat(self._file)
        self.seen.append((hook, beat.phase, beat.step))
        return beat

    def on_train_begin(self, logs: Any = None) -> None:
        self.look("begin")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.look(f"step {self.epoch}.{batch}")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.look(f"validation {self.epoch}.{batch}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.look(f"epoch {epoch}")

    def on_train_end(self, logs: Any = None) -> None:
        self.look("end")


@pytest.fixture
def sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("KERAS_PREEMPT_PLATFORM", "generic")
    monkeypatch.setenv(STATUS_DIR, str(tmp_path))
    monkeypatch.setenv(WORKER, "0")
    monkeypatch.setattr(heartbeat, "_offer_stacks", lambda path: 0)  # This process goes on.
    monkeypatch.setattr(heartbeat, "_own", None)
    with heartbeat.prepared(tmp_path / heartbeat.beat_file(0)) as file:
        yield Sees(file)


def test_each_phase_is_shown_at_its_time(sees: Sees, tmp_path: Path) -> None:
    fit(tmp_path / "run", more=[sees], validation=make_data(), save_every=2)
    last = STEPS - 1
    assert sees.seen == [
        ("begin", Phase.START, 0),
        ("step 0.0", Phase.COMPILE, 0),
        *((f"step 0.{batch}", Phase.TRAIN, batch) for batch in range(1, STEPS)),
        ("validation 0.0", Phase.VALIDATION_START, STEPS),
        *((f"validation 0.{batch}", Phase.VALIDATION, STEPS) for batch in range(1, STEPS)),
        ("epoch 0", Phase.EPOCH, STEPS),
        ("step 1.0", Phase.EPOCH, STEPS),
        *((f"step 1.{batch}", Phase.TRAIN, STEPS + batch) for batch in range(1, STEPS)),
        ("validation 1.0", Phase.VALIDATION_START, 2 * STEPS),
        *((f"validation 1.{batch}", Phase.VALIDATION, 2 * STEPS) for batch in range(1, STEPS)),
        ("epoch 1", Phase.EPOCH, 2 * STEPS),
        ("end", Phase.OUTSIDE, 2 * STEPS),
    ], last
    beat = sees.look("after")
    assert (beat.fit, beat.members, beat.saved) == (1, 1, 2 * STEPS)


def test_a_fit_that_is_preempted_and_resumed_goes_on_counting(sees: Sees, tmp_path: Path) -> None:
    fit(tmp_path / "run", more=[sees], strike=(0, 2))
    assert sees.look("between").phase is Phase.OUTSIDE
    assert sees.look("between").saved == 3
    sees.seen.clear()
    fit(tmp_path / "run", more=[sees])
    assert sees.seen[:3] == [
        ("begin", Phase.START, 0),
        ("step 0.3", Phase.COMPILE, 3),
        ("epoch 0", Phase.EPOCH, STEPS),
    ]
    assert sees.look("after").fit == 2


def test_a_save_is_a_phase_of_its_own(sees: Sees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from keras_preempt.training.save.session import Session

    capture = Session.capture

    def watched(self: Session, position: Any) -> Any:
        sees.look("capture")
        return capture(self, position)

    monkeypatch.setattr(Session, "capture", watched)
    fit(tmp_path / "run", more=[sees], save_every=2, epochs=1)
    # At step 2, and at the end.
    assert [each for each in sees.seen if each[0] == "capture"] == [
        ("capture", Phase.SAVE, 2),
        ("capture", Phase.SAVE, 4),
    ]
    assert ("step 0.2", Phase.TRAIN, 2) in sees.seen


def test_the_steps_of_an_execution_are_counted(sees: Sees, tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="last")], name="executions")
    model.compile("sgd", "mse", steps_per_execution=2)
    fit(tmp_path / "run", model=model, more=[sees])
    assert [step for hook, _, step in sees.seen if hook.startswith("step")] == [0, 2, 4, 6]
