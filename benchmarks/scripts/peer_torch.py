"""The problem of the peers on PyTorch: its network, its data, and the arrays of its end."""

from __future__ import annotations

from typing import Any

import peer_problem
import torch


def network() -> Any:
    """Returns the small network with a random layer, with the same weights in each start."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
    )


def dataset() -> Any:
    """Returns the samples with their targets."""
    return torch.utils.data.TensorDataset(*map(torch.from_numpy, peer_problem.data()))


def loader(kind: Any = torch.utils.data.DataLoader) -> Any:
    """Returns the batches of an epoch, in another order each time."""
    return kind(dataset(), batch_size=peer_problem.BATCH, shuffle=True)


def loss_of(net: Any, x: Any, y: Any) -> Any:
    """Returns the loss of a batch."""
    return torch.nn.functional.mse_loss(net(x), y)


def end(net: Any, optimizer: Any) -> dict[str, Any]:
    """Returns every array of a network and its optimizer."""
    found = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        found |= {f"optimizer/{number}/{name}": value for name, value in state.items()}
    return found
