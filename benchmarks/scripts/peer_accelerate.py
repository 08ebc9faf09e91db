"""The peer Accelerate, in a loop of one's own with `save_state` and `load_state`. Run as: FOLDER WAY [UPDATES].

Accelerate does not listen to signals: the handler is the script's. `stateful`: `use_stateful_dataloader=True` and
PyTorch's DataLoader, which Accelerate then replaces. `given`: the same, and torchdata's StatefulDataLoader from the
beginning. `skip`: `skip_first_batches`, as its guide to checkpoints has it.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import peer_problem
import peer_torch
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed


class Progress:
    """Where the training is: an object with a state that Accelerate keeps."""

    def __init__(self) -> None:
        self.epoch = self.step = 0

    def state_dict(self) -> dict[str, Any]:
        """Returns the place."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the place."""
        vars(self).update(state)


def fit(
    folder: str, steps: peer_problem.Steps, *, stateful: bool, given: bool = False, listen: bool = True
) -> dict[str, Any]:
    """Trains, and returns the end; saves and leaves after SIGTERM."""
    set_seed(1)
    told: list[int] = []
    if listen:
        signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=stateful)
    )
    net = peer_torch.network()
    optimizer = torch.optim.Adam(net.parameters())
    kind = torch.utils.data.DataLoader
    if given:
        from torchdata.stateful_dataloader import StatefulDataLoader as kind
    loader = peer_torch.loader(kind)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    saved = Path(folder, "saved")
    if saved.exists():
        accelerator.load_state(str(saved))
    done = progress.step
    while progress.epoch < peer_problem.EPOCHS:
        batches = loader
        if not stateful and done:
            batches = accelerator.skip_first_batches(loader, done)
        done = 0
        for x, y in batches:
            steps.note(progress.epoch * peer_problem.STEPS + progress.step, x[:, 0])
            accelerator.backward(peer_torch.loss_of(net, x, y))
            optimizer.step()
            optimizer.zero_grad()
            progress.step += 1
            if told:
                accelerator.save_state(str(saved))
                sys.exit(peer_problem.EXIT_RESTART)
        progress.epoch, progress.step = progress.epoch + 1, 0
    return peer_torch.end(net, optimizer)


def stateful_alone(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """Nothing that saves, with the loader that can be resumed."""
    return fit(folder, steps, stateful=True, listen=False)


def stateful(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """The loader's state is in the checkpoint."""
    return fit(folder, steps, stateful=True)


def given_alone(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """Nothing that saves, with torchdata's loader."""
    return fit(folder, steps, stateful=True, given=True, listen=False)


def given(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """The loader's state is in the checkpoint, and the loader has its own sampler."""
    return fit(folder, steps, stateful=True, given=True)


def skip_alone(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """Nothing that saves, with PyTorch's loader."""
    return fit(folder, steps, stateful=False, listen=False)


def skip(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """The batches that were trained are drawn again."""
    return fit(folder, steps, stateful=False)


if __name__ == "__main__":
    ways = (stateful_alone, stateful, given_alone, given, skip_alone, skip)
    peer_problem.run({each.__name__: each for each in ways})
