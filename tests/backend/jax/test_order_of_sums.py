"""Whether the devices of this process add numbers in the same order each time."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import pytest

from keras_preempt.backend.jax.backend import BACKEND


@pytest.mark.parametrize(
    ("platform", "flags", "said"),
    [
        ("cpu", "", False),
        ("gpu", "", True),
        ("gpu", "--xla_gpu_deterministic_ops=false", True),
        ("gpu", "--xla_force_host_platform_device_count=2 --xla_gpu_deterministic_ops=true", False),
        ("gpu", "--xla_gpu_exclude_nondeterministic_ops=true", False),
    ],
)
def test_a_gpu_without_the_flag_may_add_in_any_order(
    platform: str, flags: str, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(platform=platform)])
    assert bool(BACKEND.unordered_sums()) == said
