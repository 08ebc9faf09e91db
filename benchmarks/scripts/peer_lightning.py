"""The peer PyTorch Lightning, in the ways of its documentation. Run as: FOLDER WAY [UPDATES].

`slurm`: the signal of `#SBATCH --signal=SIGUSR1@90`, after which Lightning saves and requeues the job. `exception`: its
`ModelCheckpoint(save_on_exception=True)`, and `fit(ckpt_path="last")`. `stateful`: the same with the data loader that
can be resumed, which Lightning asks for where it finds none.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import lightning
import peer_problem
import peer_torch
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.environments import SLURMEnvironment
from torch.utils.data import DataLoader


class Job(lightning.LightningModule):  # type: ignore[misc]
    """The network, with its steps noted."""

    def __init__(self, steps: peer_problem.Steps) -> None:
        super().__init__()
        self.net = peer_torch.network()
        self._steps = steps

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Notes the step."""
        x, y = batch
        self._steps.note(self.trainer.global_step, x[:, 0])
        return peer_torch.loss_of(self.net, x, y)

    def configure_optimizers(self) -> Any:
        """Returns Adam."""
        return torch.optim.Adam(self.net.parameters())


def fit(
    folder: str, steps: peer_problem.Steps, resume: str | None, kind: Any = DataLoader, **options: Any
) -> dict[str, Any]:
    """Trains, and returns the end."""
    lightning.seed_everything(1, verbose=False)
    trainer = lightning.Trainer(
        max_epochs=peer_problem.EPOCHS,
        accelerator="cpu",
        default_root_dir=Path(folder, "saved"),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    job = Job(steps)
    trainer.fit(job, peer_torch.loader(kind), ckpt_path=resume)
    return peer_torch.end(job.net, trainer.optimizers[0])


def slurm(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """Slurm's signal; `scontrol requeue` is a stand-in that sends the SIGTERM of a requeue."""
    tools = Path(folder, "bin")
    tools.mkdir(exist_ok=True)
    (tools / "scontrol").write_text("#!/bin/sh\nkill -TERM $PPID\n")
    (tools / "scontrol").chmod(0o755)
    os.environ["PATH"] = f"{tools}{os.pathsep}{os.environ['PATH']}"
    os.environ |= {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    environment = SLURMEnvironment(requeue_signal=signal.SIGUSR1)
    return fit(folder, steps, None, plugins=[environment], enable_checkpointing=False)


def exception(folder: str, steps: peer_problem.Steps, kind: Any = DataLoader) -> dict[str, Any]:
    """A checkpoint at the exception that Lightning raises after SIGTERM."""
    callback = ModelCheckpoint(Path(folder, "saved"), save_last=True, save_on_exception=True)
    return fit(folder, steps, "last", kind, callbacks=[callback])


def stateful(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """The same with torchdata's StatefulDataLoader."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return exception(folder, steps, StatefulDataLoader)


def alone(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """Nothing that saves."""
    return fit(folder, steps, None, enable_checkpointing=False)


def stateful_alone(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """Nothing that saves, with the other loader."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return fit(folder, steps, None, StatefulDataLoader, enable_checkpointing=False)


if __name__ == "__main__":
    peer_problem.run({each.__name__: each for each in (alone, slurm, exception, stateful_alone, stateful)})
