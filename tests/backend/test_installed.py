"""What a user is told to install is what there is already, in another version."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from keras_preempt.backend import versions


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Has these distributions installed, and no others."""
    found = [SimpleNamespace(metadata={"Name": name}) for name in (*request.param, None)]
    monkeypatch.setattr(versions.metadata, "distributions", lambda: found)


@pytest.mark.parametrize(
    ("there", "package", "expected"),
    [
        (["jax", "jaxlib"], "jax", "jax>=1.2"),
        ([], "jax", "jax>=1.2"),
        (["jax", "jax_cuda12_plugin", "nvidia-cudnn-cu12"], "jax", "jax[cuda12]>=1.2"),
        (["jax", "jax-cuda13-plugin", "nvidia-cudnn-cu13"], "jax", "jax[cuda13]>=1.2"),
        (["jax", "jax-cuda12-plugin", "nvidia-cudnn-cu13"], "jax", "jax[cuda12-local]>=1.2"),
        (["jax", "jax-rocm7-plugin"], "jax", "jax[rocm7-local]>=1.2"),
        (["jax", "libtpu"], "jax", "jax[tpu]>=1.2"),
        (["jax", "jax-cuda12-plugin", "nvidia-cudnn-cu12"], "keras", "keras>=1.2"),
        (["tensorflow"], "tensorflow", "tensorflow>=1.2"),
        (["tensorflow", "nvidia_cudnn_cu12"], "tensorflow", "tensorflow[and-cuda]>=1.2"),
        (["tensorflow-cpu"], "tensorflow", "tensorflow-cpu>=1.2"),
    ],
    indirect=["there"],
)
def test_the_extras_of_the_own_install_are_named(there: None, package: str, expected: str) -> None:
    assert versions.requirement(package, "1.2") == expected


@pytest.mark.parametrize("there", [["jax", "jax-cuda12-plugin", "nvidia-cudnn-cu12"]], indirect=True)
def test_what_is_too_old_is_refused_with_them(there: None) -> None:
    wrong = versions.too_old("jax", "0.4.30", "0.10.2")
    assert wrong is not None
    assert "pip install 'jax[cuda12]>=0.10.2'" in wrong[1]
