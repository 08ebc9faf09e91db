"""The ways that `make test` runs, by strategy; `make chaos` runs every way under every strategy.

One of each kind of state that is kept: what is left out goes the same way through the package as something that is
in.
"""

from __future__ import annotations

from tests.ways.way import MIRRORED, ONE, WORKERS

SHORT_FORM: dict[str, tuple[str, ...]] = {
    "plain": (ONE, MIRRORED, WORKERS),
    # Input: state of an iterator, redraw, replay of all, of an epoch; a warning.
    "unseeded": (ONE,),
    "endless": (ONE, MIRRORED),
    "unknown-length": (ONE,),
    "parallel": (ONE,),
    "cached": (ONE,),
    "arrays": (ONE,),
    "py-dataset": (ONE,),
    "py-dataset-kept": (ONE,),
    "generator": (ONE,),
    "random-generator": (ONE,),
    # One shuffle below two pipelines: counts of its seed generator, with and without a replay.
    "split-shuffle": (ONE,),
    "loop-over-two-shuffles": (MIRRORED,),
    # Models: variables of every kind.
    "several-outputs": (ONE,),
    "custom-train-step": (ONE,),
    "unbuilt-sequential": (ONE,),
    "plain-variables": (ONE,),
    "random-op-in-step": (ONE,),
    "own-optimizers-unbuilt": (ONE,),
    "vae": (ONE,),
    "gan": (ONE,),
    "triplets": (ONE,),
    "metric-learning": (ONE,),
    "nested-logs": (MIRRORED,),
    "logs-by-metric": (ONE,),
    "quantized-lora": (ONE,),
    "loss-scaling": (ONE,),
    "moving-average-overwrite": (ONE,),
    # Fits: where one begins and ends, and what follows it.
    "steps-per-execution": (ONE,),
    "validation-freq": (ONE,),
    "same-callback": (ONE,),
    "pretrain-fine-tune": (ONE,),
    "callbacks-by-hand": (ONE,),
    # Callbacks: attributes, files, weights changed for a validation; a warning and an error.
    "early-stopping": (ONE,),
    "checkpoint-steps": (ONE,),
    "csv-overwrite": (ONE,),
    "tensorboard-batches": (ONE,),
    "swap-ema-epoch": (ONE,),
    "own": (ONE,),
    "own-swap-unsaid": (ONE,),
    "backup-and-restore": (ONE,),
}
