"""Public names stay: every one of release 0.1.0 can still be imported from where it was.

A name that has to go leaves this list in the change that removes it, which also needs a line under "Removed" in
CHANGELOG.md; docs/compatibility.md says in which releases that may be.
"""

from __future__ import annotations

import importlib

import pytest

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
