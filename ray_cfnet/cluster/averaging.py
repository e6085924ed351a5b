"""Gradients over all workers, on their way while the worker computes what does not need them."""

import numpy as np
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
    mesh, rank, num_workers = Mesh(host), dist.get_rank(), dist.get_world_size()

    def exchanged(gradient: Tensor, num_rows: int) -> Wait:
        if (gradient.numel() + 1) * gradient.element_size() > MOST_BYTES:
            return _reduced(gradient, num_rows)
        # In numpy, whose operations on so few numbers cost a third of torch's.
        mean = gradient.numpy()
        everyone = np.empty((num_workers, len(mean) + 1), mean.dtype)
        np.multiply(mean, num_rows, out=everyone[rank, :-1])
        everyone[rank, -1] = num_rows
        places = [memoryview(place) for place in everyone]
        mesh.send(places[rank])

        def arrive() -> None:
            mesh.receive(places)
            summed = everyone.sum(axis=0)  # the same to the last bit everywhere
            np.divide(summed[:-1], summed[-1], out=mean)

        return arrive

    return exchanged


def _reduced(gradient: Tensor, num_rows: int) -> Wait:
    """Every worker's gradient times the rows it is the mean of, over all rows."""
    summed = gradient.new_empty(gradient.numel() + 1)
    torch.mul(gradient, num_rows, out=summed[:-1])
    summed[-1] = num_rows
    travelling = dist.all_reduce(summed, async_op=True)

    def arrive() -> None:
        travelling.wait()
        torch.div(summed[:-1], summed[-1], out=gradient)

    return arrive
