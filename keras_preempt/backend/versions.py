"""The versions of Keras and its backends that this package was verified with, and those that are installed."""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib import metadata

from packaging.version import Version

from keras_preempt.checkpoint.errors import PicklableError

OLDEST_KERAS = "3.8.0"
"""Keras before 3.7 cannot begin an epoch midway; 3.7 cannot make a random seed under a strategy."""

NEWEST_KERAS = "3.15.1"
"""A newer one works as long as it has the private names of `backend.keras`."""

OLDEST_TENSORFLOW = "2.16.1"
"""The first that is installed with Keras 3."""

NEWEST_TENSORFLOW = "2.21.0"
"""A newer one works as long as it has the private names of `backend.tensorflow`."""

VERIFIED_TENSORFLOW = (OLDEST_TENSORFLOW, "2.17.1", NEWEST_TENSORFLOW)
"""All that were verified."""

OLDEST_JAX = "0.6.0"
"""The first that has every method of the coordination client that is relied upon."""

NEWEST_JAX = "0.12.0.1"
"""A newer one works as long as it has the private names of `backend.jax`."""

VERIFIED_JAX = (OLDEST_JAX, "0.7.2", "0.8.3", "0.9.2", "0.10.2", "0.11.2", NEWEST_JAX)
"""All that were verified."""

OLDEST_TORCH = "2.6.0"
"""The oldest that was verified; older ones were not tried."""

NEWEST_TORCH = "2.15.0"
"""A newer one works as long as it has the private names of `backend.torch`."""

OLDEST_KERAS_ON_TORCH = "3.15.1"
"""The only version that was verified on torch so far."""

VERIFIED = {
    "tensorflow": {
        "keras": (OLDEST_KERAS, NEWEST_KERAS),
        "tensorflow": (OLDEST_TENSORFLOW, NEWEST_TENSORFLOW),
    },
    "jax": {"keras": (OLDEST_KERAS, NEWEST_KERAS), "jax": (OLDEST_JAX, NEWEST_JAX)},
    "torch": {"keras": (OLDEST_KERAS_ON_TORCH, NEWEST_KERAS), "torch": (OLDEST_TORCH, NEWEST_TORCH)},
}
"""What has to be installed, by backend: each package with its oldest and newest verified version."""


def too_old(package: str, installed: str, oldest: str) -> tuple[str, str] | None:
    """Returns what is wrong with a version and what to do if it is too old; else None."""
    if Version(installed) >= Version(oldest):
        return None
    what = f"Expected {package} {oldest} or later. Received: {installed}."
    return what, f"Install it with `pip install '{requirement(package, oldest)}'`."


class _UnsupportedVersion(PicklableError, ImportError):
    """The installed version of a package lacks a private name that this package needs, or has changed it."""

    def __init__(self, package: str, version: str, verified: tuple[str, ...], expected: str) -> None:
        instead = "install one of these" if len(verified) > 1 else "install that"
        super().__init__(
            f"Expected {package} to have {expected}. Received: {package} {version}. keras-preempt was verified on "
            f"{package} {', '.join(verified)}: {instead}, or a newer keras-preempt."
        )


class UnsupportedTensorFlow(_UnsupportedVersion):
    """The installed TensorFlow lacks a private name that this package needs, or has changed it."""

    def __init__(self, expected: str) -> None:
        import tensorflow as tf  # Here, since what needs no TensorFlow works without it.

        super().__init__("TensorFlow", tf.__version__, VERIFIED_TENSORFLOW, expected)


class UnsupportedJax(_UnsupportedVersion):
    """The installed JAX lacks a private name that this package needs, or has changed it."""

    def __init__(self, expected: str) -> None:
        super().__init__("JAX", metadata.version("jax"), VERIFIED_JAX, expected)


DISTRIBUTIONS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tf-nightly"),
    "jax": ("jax",),
    "torch": ("torch",),
}
"""The distributions that contain a backend; the first one that is installed counts."""

_JAX_PLUGIN = re.compile(r"jax-(cuda|rocm)(\d+)-plugin")


def version_of(package: str) -> str | None:
    """Returns the installed version of a package, or of another distribution that contains it; None for none."""
    for distribution in DISTRIBUTIONS.get(package, (package,)):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def requirement(package: str, version: str, relation: str = ">=") -> str:
    """Returns pip's requirement for a version of a package, with the extras that are installed here.

    `pip install 'jax>=1.0'` over a `jax[cuda12]` would leave the plugins of the old version beside the new JAX.
    """
    names = {
        re.sub(r"[-_.]+", "-", name).lower()
        for each in metadata.distributions()
        if (name := each.metadata["Name"])
    }
    known = DISTRIBUTIONS.get(package, (package,))
    distribution = next((each for each in known if each in names), known[0])
    extras = ",".join(_extras(distribution, names))
    return distribution + (f"[{extras}]" if extras else "") + relation + version


def _extras(distribution: str, names: Collection[str]) -> list[str]:
    """Returns the extras with which pip has installed JAX or TensorFlow, judged by what they install."""
    if distribution == "tensorflow":
        return ["and-cuda"] if any(name.startswith("nvidia-cudnn") for name in names) else []
    if distribution != "jax":
        return []
    found = []
    for plugin in filter(None, map(_JAX_PLUGIN.fullmatch, sorted(names))):
        kind, number = plugin.groups()
        # CUDA comes from pip as well, or from the system; ROCm from the system only.
        brought = kind == "cuda" and any(name.startswith(f"nvidia-cudnn-cu{number}") for name in names)
        found.append(f"{kind}{number}" if brought else f"{kind}{number}-local")
    return [*found, "tpu"] if "libtpu" in names else found
