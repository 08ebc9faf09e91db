"""What is known about each platform: which notices to listen to, and what the exit status says there.

A platform is a scheduler, which starts the process and reads its exit status, on a cloud, which owns the
machine and takes it away; either may be unknown. Both send notices, so the sources of both are heard; the
exit status is the scheduler's where there is one. The tables below are what docs/termination.md shows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from keras_preempt.notices.aws import AWS
from keras_preempt.notices.azure import AZURE
from keras_preempt.notices.cloud import Accelerator, Grace, Row
from keras_preempt.notices.gce import GCE
from keras_preempt.process import environment
from keras_preempt.process.exit_codes import EXIT_RESTART, EXIT_RESTART_TPU

SIGNALS = "signals"
COORDINATION_KEY = "coordination key"
POLLED = "polled"

CLOUDS = {cloud.name: cloud for cloud in (GCE, AWS, AZURE)}
"""The clouds, by name; a cloud's name is also that of its sources, which ask its metadata server."""

MACHINES = {row.name: row for cloud in CLOUDS.values() for row in cloud.machines}
"""What follows from a cloud's kinds of machines, by name."""

SCHEDULERS = {
    row.name: row
    for row in (
        Row(
            "sagemaker",
            variables=("SM_HOSTS", "TRAINING_JOB_NAME"),
            grace=Grace(120.0, "SageMaker's between SIGTERM and SIGKILL"),
        ),
        Row(
            "vertex",
            variables=(
                "CLOUD_ML_PROJECT_ID",
                "AIP_MODEL_DIR",
                "AIP_CHECKPOINT_DIR",
                "AIP_TENSORBOARD_LOG_DIR",
            ),
            grace=Grace(30.0, "that of the machines; Vertex AI itself promises none"),
        ),
        Row(
            "slurm",
            variables=("SLURM_JOB_ID",),
            grace=Grace(30.0, "the default of KillWait; --signal and GraceTime give more"),
            end_variable="SLURM_JOB_END_TIME",
        ),
        Row(
            "lsf",
            variables=("LSB_JOBID",),
            grace=Grace(10.0, "the default of JOB_TERMINATE_INTERVAL"),
        ),
        Row(
            "kubernetes",
            variables=("KUBERNETES_SERVICE_HOST",),
            grace=Grace(30.0, "the default of terminationGracePeriodSeconds; GKE Spot gives 15"),
        ),
    )
}
"""What follows from a scheduler, by name; one that runs inside another comes first, and it counts."""

ROLES = {row.name: row for row in (Row("tpu-coordinator", EXIT_RESTART_TPU, waits_for_workers=True),)}
"""What follows from a process' role, which cannot be detected: its own program knows it."""

GENERIC_NAME = "generic"  # The name of the platform of which nothing is known.

OTHER_NAMES = {"none": GENERIC_NAME}


@dataclass(frozen=True)
class Platform:
    """Where this process runs, and what follows from that unless the user says otherwise.

    `maintenance_lead` is how many seconds the platform promises from a notice of maintenance, which does not say it, to
    the end of the machine; 0 if it promises nothing.
    """

    name: str = GENERIC_NAME  # Or a cloud's machine ("gce-gpu"), a scheduler, or both ("kubernetes+gce-gpu").
    accelerator: Accelerator = "none"  # That is the CPU.
    exit_code: int = EXIT_RESTART  # After a preemption.
    maintenance_lead: float = 0.0
    sources: tuple[str, ...] = (SIGNALS, COORDINATION_KEY)  # Those to start; also names of `CLOUDS`.
    reasons: tuple[str, ...] = ()  # How this was found, in words.
    waits_for_workers: bool = False  # Exit only once the workers that this process coordinates are gone.
    end_variable: str = ""  # The one in which it says when the allocation ends, in seconds since 1970.

    def for_tpu_coordinator(self) -> Platform:
        """This platform for a process that runs `fit` over remote TPU workers."""
        role = ROLES["tpu-coordinator"]
        return replace(
            self,
            name=f"{role.name} on {self.name}",
            accelerator="tpu",
            exit_code=role.exit_code,
            waits_for_workers=role.waits_for_workers,
        )

    def without_coordination_key(self) -> Platform:
        """This platform for a process without a coordination service, or with one that has no such key."""
        return replace(self, sources=tuple(name for name in self.sources if name != COORDINATION_KEY))

    def describe(self) -> str:
        """Where this is and how that was found, for the log."""
        return f"{self.name} ({'; '.join(self.reasons)})" if self.reasons else self.name


GENERIC = Platform()  # Nothing is known: signals are heard.


def compose(
    scheduler: str | None, machine: str | None, accelerator: Accelerator, reasons: tuple[str, ...] = ()
) -> Platform:
    """The platform of a scheduler on a cloud, found for `reasons`; either may be None.

    `machine` is a name of `MACHINES`, which says what it computes on, or one of `CLOUDS` if `accelerator` decides which
    machine it is.
    """
    rows = [SCHEDULERS[scheduler]] if scheduler else []
    sources: tuple[str, ...] = ()
    if machine:
        row = MACHINES[machine] if machine in MACHINES else CLOUDS[machine].machine(accelerator)
        rows.append(row)
        accelerator = row.accelerator or accelerator
        sources = tuple(cloud.name for cloud in CLOUDS.values() if row in cloud.machines)
    if not rows:
        return Platform(accelerator=accelerator, reasons=reasons)
    return Platform(
        name="+".join(row.name for row in rows),
        accelerator=accelerator,
        exit_code=rows[0].exit_code,
        maintenance_lead=rows[-1].maintenance_lead,
        sources=(SIGNALS, *sources, COORDINATION_KEY),
        reasons=reasons,
        waits_for_workers=rows[0].waits_for_workers,
        end_variable=rows[0].end_variable,
    )


def parse_name(text: str, accelerator: Accelerator = "none") -> Platform:
    """Reads ``KERAS_PREEMPT_PLATFORM``: "generic" ("none"), or names joined by "+". Raises ValueError for all else."""
    names = [OTHER_NAMES.get(name.strip(), name.strip()) for name in text.lower().split("+")]
    schedulers = [name for name in names if name in SCHEDULERS]
    machines = [name for name in names if name in _MACHINE_NAMES]
    known = len(schedulers) + len(machines) == len(names) or names == [GENERIC_NAME]
    if not known or len(schedulers) > 1 or len(machines) > 1:
        raise ValueError(
            f"Expected {environment.PLATFORM} to be 'generic', one of {', '.join(SCHEDULERS)}, one of "
            f"{', '.join(_MACHINE_NAMES)}, or one of each joined by '+'. Received: {text!r}. Unset it to have the "
            "platform detected."
        )
    reasons = (f"{environment.PLATFORM} says so",)
    return compose(next(iter(schedulers), None), next(iter(machines), None), accelerator, reasons)


_MACHINE_NAMES = tuple(
    dict.fromkeys(
        name for cloud in CLOUDS.values() for name in (cloud.name, *(m.name for m in cloud.machines))
    )
)
"""gce, gce-cpu, gce-gpu, ..., aws, azure: a cloud's name stands for whichever of its machines this is."""
