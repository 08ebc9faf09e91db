"""What pip has installed of Keras' backends, and how a user would ask for another version of the same."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from importlib import metadata

DISTRIBUTIONS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tf-nightly"),
    "jax": ("jax",),
}
"""The distributions that bring a backend; of each the first that is installed counts."""

_JAX_PLUGIN = re.compile(r"jax-(cuda|rocm)(\d+)-plugin")


def version_of(package: str) -> str | None:
    """Returns the installed version of a package, or of another distribution that brings it; None if there is none."""
    for distribution in DISTRIBUTIONS.get(package, (package,)):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def requirement(package: str, version: str, relation: str = ">=") -> str:
    """Returns what to give pip for a version of a package, as it is installed here.

    `pip install 'jax>=1.0'` over a `jax[cuda12]` would leave the plugins of the old version beside the new JAX.

    Args:
        package: "jax", "tensorflow" or "keras".
        version: Which version.
        relation: As in ">=" or "==".
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
    """The extras with which pip has installed JAX or TensorFlow, as far as what they bring is there."""
    if distribution == "tensorflow":
        return ["and-cuda"] if _any(names, "nvidia-cudnn") else []
    if distribution != "jax":
        return []
    found = []
    for plugin in filter(None, map(_JAX_PLUGIN.fullmatch, sorted(names))):
        kind, number = plugin.groups()
        # CUDA comes from pip as well, or from the system; ROCm from the system only.
        brought = kind == "cuda" and _any(names, "nvidia-cudnn-cu" + number)
        found.append(f"{kind}{number}" if brought else f"{kind}{number}-local")
    return [*found, "tpu"] if "libtpu" in names else found


def _any(names: Iterable[str], beginning: str) -> bool:
    return any(name.startswith(beginning) for name in names)
