"""What there is to know about a platform: which notices to listen to, and what the exit status says there.

A platform is a scheduler, which starts the process and reads its exit status, on a cloud, which owns the
machine and takes it away; either may be unknown. Both send notices, so the sources of both are heard; the
exit status is the scheduler's where there is one. The tables below are what docs/termination.md shows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from keras_preempt.process import environment
from keras_preempt.process.exit_codes import EXIT_RESTART, EXIT_RESTART_GCE, EXIT_RESTART_TPU

Accelerator = Literal["gpu", "tpu", "none"]

SIGNALS = "signals"
COORDINATION_KEY = "coordination key"
GCE = "gce"
AWS = "aws"
AZURE = "azure"
POLLED = "polled"

METADATA_SOURCES = (GCE, AWS, AZURE)
"""Sources that ask the cloud's metadata server; also the names of the clouds."""

SOURCES = (SIGNALS, *METADATA_SOURCES, COORDINATION_KEY, POLLED)
"""Names of all sources of notices."""

GPU_MAINTENANCE_LEAD = 3600.0
"""Seconds from Compute Engine's notice of maintenance to the end of a machine with GPUs."""

MAINTENANCE_LEAD = 60.0
"""The same for other machines. Source of both: cloud.google.com/compute/docs/gpus/gpu-host-maintenance."""


@dataclass(frozen=True)
class Row:
    """What one cloud, kind of machine or scheduler stands for.

    Attributes:
        name: What `KERAS_PREEMPT_PLATFORM` calls it.
        exit_code: Exit status after a preemption.
        metadata: The metadata source that is heard there; None if there is none.
        maintenance_lead: Seconds from a notice of maintenance to the end of the machine, which the platform
            promises and the notice does not say; 0 if it promises nothing.
        waits_for_workers: Whether to exit only once the workers are gone.
    """

    name: str
    exit_code: int = EXIT_RESTART
    metadata: str | None = None
    maintenance_lead: float = 0.0
    waits_for_workers: bool = False


CLOUDS = {
    row.name: row
    for row in (
        Row("gce-cpu", EXIT_RESTART_GCE, GCE, MAINTENANCE_LEAD),
        Row("gce-gpu", EXIT_RESTART_GCE, GCE, GPU_MAINTENANCE_LEAD),
        Row("gce-tpu", EXIT_RESTART_TPU, GCE, MAINTENANCE_LEAD, waits_for_workers=True),
        Row("aws", metadata=AWS),
        Row("azure", metadata=AZURE),
    )
}
"""By name, what a cloud's machines stand for."""

SCHEDULERS = {row.name: row for row in map(Row, ("sagemaker", "vertex", "slurm", "lsf", "kubernetes"))}
"""By name, what a scheduler stands for; one that runs inside another comes first and is the one that counts."""

ROLES = {row.name: row for row in (Row("tpu-coordinator", EXIT_RESTART_TPU, waits_for_workers=True),)}
"""What a process is for, which no detection can find: its own program knows."""

GENERIC_NAME = "generic"
"""The name of the platform of which nothing is known."""

OTHER_NAMES = {"none": GENERIC_NAME}


@dataclass(frozen=True)
class Platform:
    """Where this process runs, and what follows from that unless the user says otherwise.

    Attributes:
        name: "generic", a cloud ("gce-gpu"), a scheduler ("slurm") or both ("kubernetes+gce-gpu").
        accelerator: What the machine computes on: "gpu", "tpu" or "none" (the CPU).
        exit_code: Exit status after a preemption.
        maintenance_lead: Seconds from a notice of maintenance to the end of the machine, which the platform
            promises and the notice does not say; 0 if it promises nothing.
        sources: The sources of notices to start, out of `SOURCES`. "coordination key" is for jobs that have
            a coordination service.
        reasons: How this was found, in words.
        waits_for_workers: Whether to exit only once the workers that this process coordinates are gone.
    """

    name: str = GENERIC_NAME
    accelerator: Accelerator = "none"
    exit_code: int = EXIT_RESTART
    maintenance_lead: float = 0.0
    sources: tuple[str, ...] = (SIGNALS, COORDINATION_KEY)
    reasons: tuple[str, ...] = ()
    waits_for_workers: bool = False

    def for_tpu_coordinator(self) -> Platform:
        """This platform for a process that runs `fit` over remote TPU workers."""
        row = ROLES["tpu-coordinator"]
        return replace(
            self,
            name=f"{row.name} on {self.name}",
            accelerator="tpu",
            exit_code=row.exit_code,
            waits_for_workers=row.waits_for_workers,
        )

    def describe(self) -> str:
        """Where this is and how that was found, for the log."""
        return f"{self.name} ({'; '.join(self.reasons)})" if self.reasons else self.name


GENERIC = Platform()
"""Nothing is known: signals are heard."""


def compose(
    scheduler: str | None, cloud: str | None, accelerator: Accelerator, reasons: tuple[str, ...] = ()
) -> Platform:
    """The platform of a scheduler on a cloud.

    Args:
        scheduler: A name of `SCHEDULERS`, or None.
        cloud: "gce", "aws", "azure", a name of `CLOUDS`, or None.
        accelerator: What the machine computes on; a cloud such as "gce-gpu" says it itself.
        reasons: How this was found.
    """
    if cloud == GCE:
        cloud = f"gce-{'cpu' if accelerator == 'none' else accelerator}"
    elif cloud in ("gce-gpu", "gce-tpu"):
        accelerator = "gpu" if cloud == "gce-gpu" else "tpu"
    elif cloud == "gce-cpu":
        accelerator = "none"
    rows = [SCHEDULERS[scheduler]] if scheduler else []
    rows += [CLOUDS[cloud]] if cloud else []
    if not rows:
        return Platform(accelerator=accelerator, reasons=reasons)
    return Platform(
        name="+".join(row.name for row in rows),
        accelerator=accelerator,
        exit_code=rows[0].exit_code,
        maintenance_lead=rows[-1].maintenance_lead,
        sources=(SIGNALS, *(row.metadata for row in rows if row.metadata), COORDINATION_KEY),
        reasons=reasons,
        waits_for_workers=rows[0].waits_for_workers,
    )


def parse_name(text: str, accelerator: Accelerator = "none") -> Platform:
    """Reads the value of ``KERAS_PREEMPT_PLATFORM``: "generic" ("none"), or names joined by "+".

    Raises:
        ValueError: A name is unknown, or there are two schedulers or two clouds.
    """
    names = [OTHER_NAMES.get(name.strip(), name.strip()) for name in text.lower().split("+")]
    schedulers = [name for name in names if name in SCHEDULERS]
    clouds = [name for name in names if name in CLOUDS or name == GCE]
    known = len(schedulers) + len(clouds) == len(names) or names == [GENERIC_NAME]
    if not known or len(schedulers) > 1 or len(clouds) > 1:
        raise ValueError(
            f"Expected {environment.PLATFORM} to be 'generic', one of {', '.join(SCHEDULERS)}, one of gce, "
            f"{', '.join(CLOUDS)}, or one of each joined by '+'. Received: {text!r}. Unset it to have the "
            "platform detected."
        )
    reasons = (f"{environment.PLATFORM} says so",)
    return compose(next(iter(schedulers), None), next(iter(clouds), None), accelerator, reasons)
