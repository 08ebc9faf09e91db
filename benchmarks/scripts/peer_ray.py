"""The peer Ray Train on one worker, as its guide to failures and preemption has it. Run as: FOLDER WAY [UPDATES].

`driver`: a checkpoint at the end of each epoch; the signal is for the driver, the process that calls `fit`. `node`: the
worker is on a node of its own, whose `ray start --block` gets the signal, as from Kubernetes; it drains the node, of
which `get_preemption_info` tells the training function. The whole job is started again, as the run of the same name.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import peer_problem
import peer_torch
import ray
import ray.train
import ray.train.torch
import torch


class Relayed(peer_problem.Steps):
    """Steps in a worker of Ray, whose driver has the pipes.

    A step after the notice lasts so long that a worker hears of it by its end (Ray looks every 5 s), and that three
    more do not end within Ray's 30 s.
    """

    seconds = 8.0

    def __init__(self, folder: str, wait_at: int | None, driver: int) -> None:
        super().__init__(folder, wait_at)
        self._pipes = Path("/proc", str(driver), "fd")

    def wait(self) -> None:
        """Waits until the signal was sent, in the middle of the step."""
        ray.train.get_all_reported_checkpoints()  # Ray notes them some seconds after the report.
        with (self._pipes / "1").open("w") as out, (self._pipes / "0").open() as inward:
            print("READY", file=out, flush=True)
            inward.readline()
        time.sleep(self.seconds)


def train(config: dict[str, Any]) -> None:
    """The training function: trains from the newest checkpoint on, and writes the end."""
    steps = Relayed(config["folder"], config["wait_at"], config["driver"])
    net = ray.train.torch.prepare_model(peer_torch.network())
    optimizer = torch.optim.Adam(net.parameters())
    loader = ray.train.torch.prepare_data_loader(peer_torch.loader())
    done, saved_on_preemption = 0, False
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as saved:
            state = torch.load(Path(saved, "checkpoint.pt"))
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["done"]

    def save() -> None:
        with tempfile.TemporaryDirectory() as saved:
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "done": done}
            torch.save(state, Path(saved, "checkpoint.pt"))
            ray.train.report({"done": done}, checkpoint=ray.train.Checkpoint.from_directory(saved))

    while done < peer_problem.EPOCHS * peer_problem.STEPS:
        for x, y in loader:
            steps.note(done, x[:, 0])
            optimizer.zero_grad()
            peer_torch.loss_of(net, x, y).backward()
            optimizer.step()
            done += 1
            if config["listen"] and ray.train.get_preemption_info() and not saved_on_preemption:
                save()
                saved_on_preemption = True
            if done % peer_problem.STEPS == 0:
                break
        if config["save"]:
            save()
    peer_problem.leave(config["folder"], peer_torch.end(net, optimizer))


def fit(folder: str, wait_at: int | None, *, save: bool = True, listen: bool = False) -> None:
    """Trains in the cluster that was started."""
    config = {"folder": folder, "wait_at": wait_at, "driver": os.getpid(), "save": save, "listen": listen}
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config=config,
        scaling_config=ray.train.ScalingConfig(num_workers=1),
        run_config=ray.train.RunConfig(name="run", storage_path=str(Path(folder, "saved"))),
    )
    trainer.fit()


def alone(folder: str, wait_at: int | None) -> None:
    """Nothing that saves."""
    ray.init("local", num_cpus=1, include_dashboard=False)
    fit(folder, wait_at, save=False)


def driver(folder: str, wait_at: int | None) -> None:
    """The signal is for the driver."""
    ray.init("local", num_cpus=1, include_dashboard=False)
    fit(folder, wait_at)


def node(folder: str, wait_at: int | None) -> None:
    """The signal goes on to the node of the worker, with which this machine ends."""
    ray.init("local", num_cpus=0, include_dashboard=False)
    address = ray.get_runtime_context().gcs_address
    start = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus=1"]
    with subprocess.Popen([*start, f"--address={address}"]) as workers:

        def leave(number: int, frame: Any) -> None:
            workers.send_signal(number)
            sys.exit(workers.wait())

        signal.signal(signal.SIGTERM, leave)
        try:
            fit(folder, wait_at, listen=True)
        finally:
            workers.terminate()


if __name__ == "__main__":
    place, way, wait_at = peer_problem.told()
    # Workers have another working directory.
    {each.__name__: each for each in (alone, driver, node)}[way](str(Path(place).resolve()), wait_at)
