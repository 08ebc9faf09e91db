"""What a machine says about itself without being asked over a network: variables, firmware, device files.

All of it is a hint that somebody else may set or hide, so nothing here raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from keras_preempt.notices.platform import AWS, AZURE, GCE, Accelerator

AZURE_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"
"""The chassis asset tag of every Azure machine; other Hyper-V machines have Microsoft's name, and not this."""

SCHEDULER_VARIABLES = (
    ("sagemaker", ("SM_HOSTS", "TRAINING_JOB_NAME")),
    ("vertex", ("CLOUD_ML_PROJECT_ID", "AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR", "AIP_TENSORBOARD_LOG_DIR")),
    ("slurm", ("SLURM_JOB_ID",)),
    ("lsf", ("LSB_JOBID",)),
    ("kubernetes", ("KUBERNETES_SERVICE_HOST",)),
)
"""What each scheduler sets for the processes that it starts; one that can run inside another comes first."""

SERVICE_ACCOUNT = "var/run/secrets/kubernetes.io/serviceaccount"
"""A folder that Kubernetes puts into containers, also where the variables were cleared."""

TPU_VARIABLES = ("TPU_NAME", "TPU_WORKER_ID", "TPU_ACCELERATOR_TYPE")

_FIRMWARE = "sys/class/dmi/id"


@dataclass(frozen=True)
class Clue:
    """What was found, and by which sign.

    Attributes:
        name: The scheduler, cloud or accelerator.
        sign: In words, for the log.
    """

    name: str
    sign: str


def scheduler(variables: Mapping[str, str], root: Path = Path("/")) -> Clue | None:
    """The scheduler that started this process."""
    for name, signs in SCHEDULER_VARIABLES:
        for sign in signs:
            if variables.get(sign):
                return Clue(name, f"{sign} is set")
    if (root / SERVICE_ACCOUNT).is_dir():
        return Clue("kubernetes", f"/{SERVICE_ACCOUNT} is there")
    return None


def cloud(root: Path = Path("/")) -> Clue | None:
    """The cloud, as the firmware of its machines names it."""
    if (product := _firmware(root, "product_name")).startswith("Google Compute Engine"):
        return Clue(GCE, f"the firmware says {product}")
    for field in ("sys_vendor", "bios_vendor"):
        if (vendor := _firmware(root, field)) == "Amazon EC2":
            return Clue(AWS, f"the firmware says {vendor}")
    if "amazon" in (version := _firmware(root, "bios_version").lower()):  # Machines on Xen: "4.11.amazon".
        return Clue(AWS, f"the firmware says {version}")
    if (
        _firmware(root, "sys_vendor") == "Microsoft Corporation"
        and _firmware(root, "chassis_asset_tag") == AZURE_ASSET_TAG
    ):
        return Clue(AZURE, "the firmware says Microsoft Corporation with the asset tag of Azure")
    return None


def accelerator(variables: Mapping[str, str], root: Path = Path("/")) -> tuple[Accelerator, str | None]:
    """What the machine computes on, and by which sign; "none" without one.

    Device files rather than TensorFlow's list: it is the machine that is stopped for maintenance, whether or
    not this process uses all of it, and TensorFlow must not be started by looking.
    """
    for variable in TPU_VARIABLES:
        if variables.get(variable):
            return "tpu", f"{variable} is set"
    for pattern, kind in _DEVICES:
        device = next(iter(sorted((root / "dev").glob(pattern))), None)
        if device is not None:
            return kind, f"/dev/{device.name} is there"
    return "none", None


_DEVICES: tuple[tuple[str, Accelerator], ...] = (("accel[0-9]*", "tpu"), ("nvidia[0-9]*", "gpu"))


def _firmware(root: Path, field: str) -> str:
    try:
        return (root / _FIRMWARE / field).read_text(errors="replace").strip()
    except OSError:
        return ""
