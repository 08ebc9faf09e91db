"""A checkpoint of divided variables that an earlier commit has written is read, exported and continued."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.reader import verify
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.cli.main import main
from tests.cluster.jax_training import JaxTraining
from tests.cluster.outcome import differences

KEPT = Path(__file__).parent / "formats" / "format-2-two-processes"
END = KEPT.with_name(f"{KEPT.name}.end")


def test_it_is_read_whole_and_its_pieces_are_put_together(tmp_path: Path) -> None:
    store = LocalStore(shutil.copytree(KEPT, tmp_path / "run"))
    (info,) = committed(store)
    assert info.manifest is not None
    assert (info.manifest.format, info.manifest.step, info.manifest.kind) == (2, 6, "preempted")
    verify(store, info)
    out = tmp_path / "out.safetensors"
    assert main(["export", store.url, str(out)]) == 0
    exported = load_file(out)
    with np.load(f"{KEPT}.restored.0.npz") as restored:
        # "003 sequential/wide/kernel": numbered, since two variables may have one path.
        whole = {name.partition(" ")[2]: restored[name] for name in restored.files}
    assert {"sequential/wide/kernel", "sequential/wide/bias", "sequential/narrow/kernel"} <= exported.keys()
    for name, values in exported.items():
        np.testing.assert_array_equal(values, whole[name], err_msg=name)


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_it_is_continued_bit_by_bit(tmp_path: Path) -> None:
    training = JaxTraining(tmp_path, 2, "mp", fresh=False)
    shutil.copytree(KEPT, training.directory)
    training.finish()
    with np.load(f"{KEPT}.restored.0.npz") as expected, np.load(training.restored()) as restored:
        for name in expected.files:
            np.testing.assert_array_equal(restored[name], expected[name], err_msg=name)
    if differences(END, training.output, 2):
        # The processor or a release of JAX may round otherwise than where the directory was made.
        undisturbed = JaxTraining(tmp_path / "undisturbed", 2, "mp", fresh=False)
        undisturbed.finish()
        assert differences(END, undisturbed.output, 2), "the restart alone made a difference"
        for process in range(2):
            with (
                np.load(f"{END}.{process}.npz") as stored,
                np.load(f"{training.output}.{process}.npz") as found,
            ):
                for name in stored.files:
                    np.testing.assert_allclose(found[name], stored[name], rtol=1e-4, atol=1e-5, err_msg=name)
        records = [json.loads(Path(f"{prefix}.0.json").read_text()) for prefix in (END, training.output)]
        assert records[0]["history"].keys() == records[1]["history"].keys()
