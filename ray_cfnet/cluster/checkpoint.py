"""Training state between two epochs, as data: weights, both optimisers, and what every epoch measured.

There is no random state to keep: each epoch seeds its own generators from (seed, epoch, worker).
"""

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from ray_cfnet.model.descent import Descent
from ray_cfnet.model.net import CounterNet
from ray_cfnet.model.step import TwoStageUpdate

STATE_FORMAT = 3
"""Raised when a state of the same settings holds other tensors, or means another network: a run that was stopped before
begins anew."""

_TENSORS = "state.safetensors"
_HISTORY = "history.json"
_NET = "net/"


def save_state(directory: str, update: TwoStageUpdate, history: list[dict[str, Any]]) -> None:
    tensors = {_NET + name: weight for name, weight in update.net.state_dict().items()}
    for prefix, descent in _descents(update).items():
        tensors |= {f"{prefix}/{name}": tensor for name, tensor in descent.state.items()}
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file(kept, str(Path(directory) / _TENSORS))
    (Path(directory) / _HISTORY).write_text(json.dumps(history))


def load_state(directory: str, update: TwoStageUpdate) -> list[dict[str, Any]]:
    """Brings net and optimisers back to a saved state and returns the history of the epochs before."""
    tensors = safetensors.torch.load_file(str(Path(directory) / _TENSORS))
    _load_net(update.net, tensors)
    for prefix, descent in _descents(update).items():
        for name, tensor in descent.state.items():
            tensor.copy_(tensors[f"{prefix}/{name}"])
    return load_history(directory)


def load_weights(directory: str, net: CounterNet) -> None:
    """Only the weights, to make a bundle of."""
    _load_net(net, safetensors.torch.load_file(str(Path(directory) / _TENSORS)))


def load_history(directory: str) -> list[dict[str, Any]]:
    history: list[dict[str, Any]] = json.loads((Path(directory) / _HISTORY).read_text())
    return history


def _load_net(net: CounterNet, tensors: dict[str, torch.Tensor]) -> None:
    net.load_state_dict({name[len(_NET) :]: tensor for name, tensor in tensors.items() if name.startswith(_NET)})


def _descents(update: TwoStageUpdate) -> dict[str, Descent]:
    return {"prediction": update.prediction, "generator": update.generator}
