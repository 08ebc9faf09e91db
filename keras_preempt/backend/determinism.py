"""How each backend makes a GPU add numbers in the same order each time. Imports none of them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Determinism:
    """How to make a GPU give the same bits twice."""

    variable: str  # An environment variable for it, ...
    value: str  # ... and the pattern that its value matches then.
    in_script: str  # The name in a script that does it without the variable.
    cure: str  # What to do: a sentence without its full stop.

    @property
    def is_set(self) -> bool:
        return re.search(self.value, os.environ.get(self.variable, ""), re.IGNORECASE) is not None


OF_TENSORFLOW = Determinism(
    "TF_DETERMINISTIC_OPS",
    r"\A(1|true)\Z",
    "enable_op_determinism",
    "Call tf.config.experimental.enable_op_determinism() in the script, or set TF_DETERMINISTIC_OPS=1",
)

OF_JAX = Determinism(
    "XLA_FLAGS",
    r"--xla_gpu_(deterministic|exclude_nondeterministic)_ops(=true|=1|\s|\Z)",
    "deterministic_ops",
    "Set XLA_FLAGS=--xla_gpu_deterministic_ops=true for the job",
)

OF_TORCH = Determinism(
    "CUBLAS_WORKSPACE_CONFIG",
    r"(?!)",  # It is needed, and not enough: torch has no variable that is.
    "use_deterministic_algorithms",
    "Call torch.use_deterministic_algorithms(True) in the script, and set CUBLAS_WORKSPACE_CONFIG=:4096:8 for the job",
)
