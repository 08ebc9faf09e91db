"""The peer Composer, with `autoresume` as its page on resumption has it. Run as: FOLDER WAY [UPDATES].

`epoch`: a checkpoint at the end of each epoch, which is its default. `batches`: one every 10 batches. `sampler`: the
same, and the sampler of its `dist.get_sampler`, whose order has a seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peer_problem
import peer_torch
import torch
from composer import Callback, ComposerModel, Trainer
from composer.utils import dist


class Job(ComposerModel):  # type: ignore[misc]
    """The network as Composer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = peer_torch.network()

    def forward(self, batch: Any) -> Any:
        """Returns what the network makes of a batch."""
        return self.net(batch[0])

    def loss(self, outputs: Any, batch: Any) -> Any:
        """Returns the loss."""
        return torch.nn.functional.mse_loss(outputs, batch[1])


class Noted(Callback):  # type: ignore[misc]
    """Notes the steps."""

    def __init__(self, steps: peer_problem.Steps) -> None:
        self._steps = steps

    def batch_start(self, state: Any, logger: Any) -> None:
        """Notes the step."""
        self._steps.note(int(state.timestamp.batch), state.batch[0][:, 0])


def fit(
    folder: str,
    steps: peer_problem.Steps,
    save_interval: str = "1ep",
    *,
    sampler: bool = False,
    save: bool = True,
) -> dict[str, Any]:
    """Trains, and returns the end."""
    job = Job()
    optimizer = torch.optim.Adam(job.parameters())
    samples = peer_torch.dataset()
    order = {"sampler": dist.get_sampler(samples, shuffle=True)} if sampler else {"shuffle": True}
    trainer = Trainer(
        model=job,
        optimizers=optimizer,
        train_dataloader=torch.utils.data.DataLoader(samples, peer_problem.BATCH, **order),
        max_duration=f"{peer_problem.EPOCHS}ep",
        seed=1,
        device="cpu",
        callbacks=[Noted(steps)],
        progress_bar=False,
        run_name="run",
        save_folder=str(Path(folder, "saved")) if save else None,
        save_interval=save_interval,
        autoresume=save,
    )
    trainer.fit()
    return peer_torch.end(job.net, optimizer)


def alone(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """Nothing that saves."""
    return fit(folder, steps, save=False)


def epoch(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """A checkpoint each epoch."""
    return fit(folder, steps)


def batches(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """A checkpoint every 10 batches."""
    return fit(folder, steps, "10ba")


def sampler_alone(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """Nothing that saves, with the other sampler."""
    return fit(folder, steps, sampler=True, save=False)


def sampler(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """A checkpoint every 10 batches, and the other sampler."""
    return fit(folder, steps, "10ba", sampler=True)


if __name__ == "__main__":
    peer_problem.run({each.__name__: each for each in (alone, epoch, batches, sampler_alone, sampler)})
