"""Gradients over all workers, on their way while the worker computes what does not need them."""

import torch
import torch.distributed as dist
from torch import Tensor

from ray_cfnet.cluster.mesh import MOST_BYTES, Mesh
from ray_cfnet.model.descent import Average, Wait

_MOST_MESHED = 16
"""Workers; beyond, sending to everybody costs more than the rounds of a reduction."""


def averaging(device: torch.device, host: str) -> Average:
    """The mean over the rows of all workers, who may bring unequal numbers; in place, when the result is called.

    All workers must call it in the same order. `host` is this worker's address for the others. Small gradients in main
    memory go directly from worker to worker; the others are reduced by torch's backend.
    """
    if device.type != "cpu" or dist.get_world_size() > _MOST_MESHED:
        return _reduced
    mesh = Mesh(host)

    def exchanged(gradient: Tensor, num_rows: int) -> Wait:
        if (gradient.numel() + 1) * gradient.element_size() > MOST_BYTES:
            return _reduced(gradient, num_rows)
        everyone = gradient.new_empty(dist.get_world_size(), gradient.numel() + 1)
        own = everyone[dist.get_rank()]
        _weighted(gradient, num_rows, own)
        places = [memoryview(place) for place in everyone.numpy()]
        mesh.send(places[dist.get_rank()])

        def arrive() -> None:
            mesh.receive(places)
            _mean(everyone.sum(dim=0), gradient)  # the same to the last bit everywhere

        return arrive

    return exchanged


def _reduced(gradient: Tensor, num_rows: int) -> Wait:
    summed = gradient.new_empty(gradient.numel() + 1)
    _weighted(gradient, num_rows, summed)
    travelling = dist.all_reduce(summed, async_op=True)

    def arrive() -> None:
        travelling.wait()
        _mean(summed, gradient)

    return arrive


def _weighted(gradient: Tensor, num_rows: int, out: Tensor) -> None:
    """The gradient times the rows it is the mean of, and their number after it."""
    torch.mul(gradient, num_rows, out=out[:-1])
    out[-1] = num_rows


def _mean(summed: Tensor, out: Tensor) -> None:
    torch.div(summed[:-1], summed[-1], out=out)
