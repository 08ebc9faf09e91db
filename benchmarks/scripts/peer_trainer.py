"""The peer Trainer of Hugging Face's transformers, with its checkpoint at SIGTERM. Run as: FOLDER WAY [UPDATES].

`skip`: as it is by default, where a resume draws the batches again that were trained already. `ignore_skip`: with
`ignore_data_skip=True`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import peer_problem
import peer_torch
import torch
import transformers
from transformers.trainer_utils import get_last_checkpoint


class Job(torch.nn.Module):  # type: ignore[misc]
    """The network as the Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = peer_torch.network()

    def forward(self, x: Any, y: Any) -> Any:
        """Returns the loss."""
        return {"loss": peer_torch.loss_of(self.net, x, y)}


class Noted(transformers.Trainer):  # type: ignore[misc]
    """A Trainer that notes its steps."""

    steps: peer_problem.Steps

    def training_step(self, model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
        """Notes the step."""
        self.steps.note(self.state.global_step, inputs["x"][:, 0])
        return super().training_step(model, inputs, *arguments, **named)


def fit(folder: str, steps: peer_problem.Steps, **options: Any) -> dict[str, Any]:
    """Trains, and returns the end; leaves if the Trainer has stopped before."""
    saved = Path(folder, "saved")
    arguments = transformers.TrainingArguments(
        str(saved),
        num_train_epochs=peer_problem.EPOCHS,
        per_device_train_batch_size=peer_problem.BATCH,
        seed=1,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        **options,
    )
    samples = [{"x": x, "y": y} for x, y in zip(*map(torch.from_numpy, peer_problem.data()), strict=True)]
    trainer = Noted(Job(), arguments, train_dataset=samples)
    trainer.steps = steps
    trainer.train(resume_from_checkpoint=get_last_checkpoint(saved) if saved.exists() else None)
    if trainer.state.global_step < trainer.state.max_steps:  # It returns as if it had come to its end.
        sys.exit(peer_problem.EXIT_RESTART)
    return peer_torch.end(trainer.model, trainer.optimizer)


def alone(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """Nothing that saves at a signal."""
    return fit(folder, steps)


def skip(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """A checkpoint at SIGTERM."""
    return fit(folder, steps, enable_jit_checkpoint=True)


def ignore_skip(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """The same; the resume takes the data from its beginning."""
    return fit(folder, steps, enable_jit_checkpoint=True, ignore_data_skip=True)


if __name__ == "__main__":
    peer_problem.run({each.__name__: each for each in (alone, skip, ignore_skip)})
