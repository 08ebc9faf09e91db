"""Public names stay: every one of release 0.1.0 can still be imported from where it was.

A name that has to go leaves this list in the change that removes it, which also needs a line under "Removed" in
CHANGELOG.md; docs/compatibility.md says in which releases that may be.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import cloudpickle
import numpy as np
import pytest
import tensorflow as tf

import keras_preempt
from keras_preempt import (
    Event,
    PreemptionCallback,
    PreemptionCheckpointHandler,
    PreemptionWatcher,
    ResumedFrom,
    TerminationConfig,
)
from keras_preempt.notices import Notice
from tests.backend.programs import python

#: `__all__` of each public module on the day of that release (commit 708cb8f).
RELEASE_0_1_0 = {
    "keras_preempt": {
        "MultiWorkerFit",
        "Preempted",
        "PreemptionCallback",
        "PreemptionCheckpointHandler",
        "PreemptionWatcher",
        "TerminationConfig",
        "WorkerLost",
        "__version__",
        "enable_multi_worker_fit",
        "load_weights",
    },
    "keras_preempt.cluster": {
        "Incarnation",
        "LocalCluster",
        "Outcome",
        "RestartPolicy",
        "Supervisor",
        "SupervisorReport",
        "Verdict",
        "WorkerExit",
        "WorkerStatus",
        "default_prefix",
        "exit_status",
        "judge",
        "read_statuses",
        "tf_config_from_hosts",
        "tf_config_from_jobset",
        "tf_config_from_slurm",
    },
    "keras_preempt.testing": {
        "FAULT_KINDS",
        "METADATA_FAULTS",
        "FakeGcs",
        "FakeMetadata",
        "Faults",
        "MetadataRequest",
        "ObjectSummary",
        "Request",
    },
}


@pytest.mark.parametrize("module", RELEASE_0_1_0)
def test_the_names_of_the_first_release_stay(module: str) -> None:
    names, today = RELEASE_0_1_0[module], importlib.import_module(module)
    assert names - set(today.__all__) == set()
    assert [name for name in sorted(names) if not hasattr(today, name)] == []


@pytest.mark.parametrize("module", RELEASE_0_1_0)
def test_the_public_names_of_a_module_are_listed(module: str) -> None:
    listed = dir(importlib.import_module(module))
    assert set(importlib.import_module(module).__all__) <= set(listed)
    assert listed == sorted(set(listed))


def test_every_name_that_is_listed_is_there_on_jax() -> None:
    pytest.importorskip("jax")
    look = "import inspect, keras_preempt; print(dict(inspect.getmembers(keras_preempt)).keys())"
    for before in ("", "import keras; "):
        run = python(before + look, KERAS_BACKEND="jax")
        assert run.returncode == 0, run.stderr
        assert "PreemptionCallback" in run.stdout
        assert "MultiWorkerFit" not in run.stdout


def test_every_argument_says_what_it_takes() -> None:
    for name in keras_preempt.__all__:
        public = getattr(keras_preempt, name)
        if inspect.isclass(public) and not issubclass(public, BaseException):
            annotations = inspect.get_annotations(public.__init__)
            assert "object" not in annotations.values(), f"{name}: {annotations}"


@pytest.mark.parametrize("module", RELEASE_0_1_0)
def test_every_public_name_is_documented(module: str) -> None:
    """Ruff asks for no docstring: inside the package a name may say enough. To users, each name is explained."""
    public = importlib.import_module(module)
    bare = []
    for name in set(public.__all__) - {"__version__"}:
        each = getattr(public, name)
        if not callable(each):
            continue
        bases = [base for base in getattr(each, "__mro__", ()) if base.__module__.startswith("keras_preempt")]
        own = {key: value for base in bases for key, value in vars(base).items() if not key.startswith("_")}
        methods = [key for key, value in own.items() if isinstance(value, (property, FunctionType))]
        bare += [name] * (not inspect.getdoc(each))
        bare += [f"{name}.{key}" for key in methods if not inspect.getdoc(getattr(each, key))]
    assert bare == []


PASSED = {
    "save_every": (PreemptionCallback, [1], True, 0, 1.5, "1", np.arange(2)),
    "keep_every": (PreemptionCallback, [1], True, 0, 1.5, "1", np.arange(2)),
    "max_to_keep": (PreemptionCallback, [1], True, 0, 1.5, "1", None, np.arange(2)),
    "save_on_request": (PreemptionCallback, [1], True, 5, "5", np.arange(2)),
    "input_state": (PreemptionCallback, [1], True, 0, 1.5, "1", None, np.arange(2)),
    "staging_dir": (PreemptionCallback, [1], True, 5, "", "gs://bucket", b"/tmp"),
    "on_event": (PreemptionCallback, [1], True, "print"),
    "termination": (PreemptionCallback, [1], True, {}),
    "signals": (TerminationConfig, [True], True, None, [15.0], np.array(15), [[15]]),
    "exit_code": (TerminationConfig, [75], True, 0, "75", np.arange(2)),
    "grace_period": (TerminationConfig, [5], True, -1, "5", float("nan")),
    "save_on_interrupt": (TerminationConfig, [True], 1, None, "yes"),
    "checkpoint_dir": (PreemptionCheckpointHandler, ["run"], True, None, "", 5, b"run"),
    "cluster_resolver": (PreemptionCheckpointHandler, [1], True, "worker", tf.distribute.get_strategy()),
    "checkpoint_or_checkpoint_manager": (PreemptionCheckpointHandler, [1], True, "run", None),
    "termination_config": (PreemptionCheckpointHandler, [1], True, {}),
    "handler's staging_dir": (PreemptionCheckpointHandler, [1], True, 5, "", "gs://bucket", b"/tmp"),
}


@pytest.mark.parametrize(
    ("name", "public", "value"),
    [(name, public, value) for name, (public, *values) in PASSED.items() for value in values],
    ids=lambda each: each.__name__ if isinstance(each, type) else re.sub(r" object at .*", "", str(each)),
)
def test_an_argument_of_another_kind_is_refused_at_once_by_its_name(
    name: str, public: Callable[..., Any], value: Any, tmp_path: Path
) -> None:
    name = name.removeprefix("handler's ")
    given = {
        PreemptionCallback: {"directory": tmp_path},
        TerminationConfig: {},
        PreemptionCheckpointHandler: {
            "cluster_resolver": None,
            "checkpoint_or_checkpoint_manager": tf.train.Checkpoint(),
            "checkpoint_dir": str(tmp_path),
        },
    }[public]
    names = "names of signals" if name == "signals" else name
    with pytest.raises(ValueError, match=rf"^Expected (signals to be )?{names}\b.* Received: "):
        public(**{**given, name: value})


COPIES = [copy.copy, copy.deepcopy, pickle.dumps, cloudpickle.dumps]


@pytest.mark.parametrize("copied", COPIES)
def test_what_belongs_to_one_fit_or_loop_refuses_to_be_copied_in_clear_words(
    copied: Callable[[Any], object], tmp_path: Path
) -> None:
    handler = PreemptionCheckpointHandler(None, tf.train.Checkpoint(), str(tmp_path))
    for one in (PreemptionCallback(tmp_path), handler, PreemptionWatcher()):
        with pytest.raises(TypeError, match=r"Expected each \w+ to .* Received: a copy.*\. Make "):
            copied(one)
    handler.close()


@pytest.mark.parametrize(
    "plain",
    [
        TerminationConfig(grace_period=5, exit_code=3),
        Event("commit", 1.5, 0, 1, {"step": 70}),
        ResumedFrom(70, 1, "preempted", "step-00000070/00001-0000"),
        Notice("signal", "SIGTERM", 1.5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain_values_are_copied_and_pickled(plain: Any) -> None:
    for again in (copy.copy(plain), copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
        assert repr(again) == repr(plain)


def test_every_repr_is_short_and_says_what_it_is(tmp_path: Path) -> None:
    callback = PreemptionCallback("runs/1", save_every="10min", max_to_keep=3)
    assert repr(callback) == "PreemptionCallback('runs/1', save_every='10min', max_to_keep=3)"
    assert repr(PreemptionCallback(Path("runs/1"))) == "PreemptionCallback('runs/1')"
    config = TerminationConfig(grace_period=25, signals=("SIGTERM", "SIGUSR1"), save_on_interrupt=False)
    assert repr(TerminationConfig()) == "TerminationConfig()"
    assert repr(TerminationConfig(time_limit=None)) == "TerminationConfig(time_limit=None)"
    assert eval(repr(config)).__dict__ == config.__dict__
    event = Event("commit", 1.5, 0, None, {"step": 70})
    assert repr(event) == "Event('commit', 1.5, 0, None, {'step': 70})"
    resumed = ResumedFrom(70, 1, "preempted", "step-00000070/00001-0000")
    assert eval(repr(resumed)) == resumed
    with PreemptionCheckpointHandler(None, tf.train.Checkpoint(), str(tmp_path)) as handler:
        handler.run(int)
        said = f"<PreemptionCheckpointHandler of {str(tmp_path)!r}: worker 0 of 1, 1 calls"
        assert repr(handler) == f"{said}>"
    assert repr(handler) == f"{said}, over>"
    assert repr(PreemptionWatcher()) == "<PreemptionWatcher: nothing was preempted>"
