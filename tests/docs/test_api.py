"""The API page lists every public name."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

import keras_preempt
from keras_preempt import cluster, notices, testing
from tests.docs.pages import ROOT


@pytest.mark.parametrize(
    "module", [keras_preempt, cluster, notices, testing], ids=lambda module: module.__name__
)
def test_every_public_name_is_on_the_page(module: ModuleType) -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    listed = set(re.findall(r"\w+", page.partition("# API")[2]))
    assert set(module.__all__) - {"__version__"} <= listed
