"""``keras-preempt export`` in the formats of Keras, which takes the model from the user's program."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.saved_run import Run, contents
from tests.cli.test_export import saved

__all__ = ["saved"]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A program of the user, in the folder in which the command is called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield Path("program.py")
    sys.modules.pop("program", None)


def test_keras_formats_without_an_architecture_ask_for_the_model(
    directory: Path, tmp_path: Path, run: Run
) -> None:
    _, err = run("export", directory, tmp_path / "net.keras", code=3)
    assert "--model train.py:make_model" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("no_such_module:make", "Expected --model to name a module that can be imported here"),
        (
            "nothing.py:make",
            "Expected --model to name a Python file. Received: 'nothing.py', which does not exist",
        ),
        ("program.py:missing", "Expected a function named 'missing' in program.py"),
        ("program.py:number", "Expected program.py:number to return a keras.Model. Received: int"),
        ("program", "Expected --model as MODULE:FUNCTION"),
        ("nothing.keras", "Expected --model to be a file that Keras can load"),
        ("nothing.json", "Expected --model to be a file that Keras can load"),
    ],
)
def test_a_model_that_cannot_be_made_is_named(
    directory: Path, program: Path, model: str, message: str, run: Run
) -> None:
    program.write_text("def number(): return 3\n")
    _, err = run("export", directory, "net.keras", "--model", model, code=2)
    assert err.count("\n") == 1
    assert message in err
    assert not os.path.exists("net.keras")


@pytest.mark.parametrize("caught", [False, True], ids=["at the top", "in a try"])
@pytest.mark.parametrize(
    "call", ["fit(x, x, verbose=0)", "fit(x, x, callbacks=[ours], verbose=0)", "train_on_batch(x, x)"]
)
def test_a_program_that_would_train_when_it_is_imported_is_refused_and_trains_nothing(
    directory: Path, program: Path, tmp_path: Path, call: str, caught: bool, run: Run
) -> None:
    import keras

    def state() -> object:
        return contents(directory), [vars(keras.Model).get(name) for name in ("fit", "train_on_batch")]

    before = state()
    training = f"made.{call}"
    if caught:  # By what a program may expect of fit.
        training = f"try:\n    {training}\nexcept ValueError:\n    pass"
    program.write_text(
        "import keras, numpy as np\n"
        "from keras_preempt import PreemptionCallback\n"
        "def make():\n"
        "    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])\n"
        "    model.compile('sgd', 'mse')\n"
        "    return model\n"
        "made, x = make(), np.ones((4, 1))\n"
        f"ours = PreemptionCallback({str(tmp_path / 'trained')!r})\n"
        f"{training}\n"
    )
    _, err = run("export", directory, "net.keras", "--model", "program.py:make", code=2)
    made = sys.modules["program"].made
    assert f"Received: a call of model.{call.partition('(')[0]}" in err
    assert 'Put what trains under `if __name__ == "__main__":`' in err
    assert not (tmp_path / "trained").exists()
    assert int(made.optimizer.iterations.numpy()) == 0
    assert not os.path.exists("net.keras")
    assert state() == before


def test_a_program_that_trains_only_when_it_is_run_is_exported(
    directory: Path, program: Path, run: Run
) -> None:
    program.write_text(
        "import keras\n"
        "def make():\n"
        "    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])\n"
        'if __name__ == "__main__":\n'
        "    make().fit([1], [1])\n"
    )
    _, err = run("export", directory, "net.keras", "--model", "program.py:make", code=3)
    assert "Expected a model with the weights" in err, "made, and found to be another model"
