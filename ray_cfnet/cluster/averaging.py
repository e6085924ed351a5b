"""Gradients over all workers, on their way while the worker computes what does not need them."""

import torch
import torch.distributed as dist
from torch import Tensor

from ray_cfnet.model.descent import Wait

_GATHERED_NUMBERS = 1_000_000
"""Of all workers together: up to here everybody gets everything, in one round; a reduction takes several."""


def average_over_workers(gradient: Tensor, num_rows: int) -> Wait:
    """The mean over the rows of all workers, who may bring unequal numbers; in place, when the result is called.

    All workers must call this in the same order.
    """
    num_workers = dist.get_world_size()
    own = torch.cat([gradient * num_rows, gradient.new_tensor([num_rows])])
    if num_workers * len(own) > _GATHERED_NUMBERS:
        everyone, travelling = own.view(1, -1), dist.all_reduce(own, async_op=True)
    else:
        everyone = own.new_empty(num_workers, len(own))
        travelling = dist.all_gather_single(everyone.view(-1), own, async_op=True)

    def arrive() -> None:
        travelling.wait()
        summed = everyone.sum(dim=0)  # the same to the last bit everywhere
        torch.div(summed[:-1], summed[-1], out=gradient)

    return arrive
