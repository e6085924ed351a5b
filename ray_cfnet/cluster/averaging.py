"""Gradients over all workers: meeting costs more than what travels, so workers meet once a step."""

import torch
import torch.distributed as dist
from torch import Tensor

from ray_cfnet.model.descent import Wait

_GATHERED_NUMBERS = 1_000_000
"""Of all workers together: up to here everybody gets everything, in one round; a reduction takes several."""


class AllWorkers:
    """The mean over the rows of all workers, who may bring unequal numbers of them.

    All workers must call the same in the same order. A gradient that is not needed yet travels with the next one.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Tensor, int]] = []

    def average(self, gradient: Tensor, num_rows: int) -> None:
        """In place, together with whatever waits."""
        self._waiting.append((gradient, num_rows))
        self._meet()

    def average_later(self, gradient: Tensor, num_rows: int) -> Wait:
        """In place when the next gradient is averaged, or when the result is called."""
        self._waiting.append((gradient, num_rows))
        return self._meet

    def _meet(self) -> None:
        if not self._waiting:
            return
        gradients, self._waiting = self._waiting, []
        parts = [part for gradient, rows in gradients for part in (gradient * rows, gradient.new_tensor([rows]))]
        summed = _sum_over_workers(torch.cat(parts))
        sizes = [len(gradient) + 1 for gradient, _ in gradients]
        for (gradient, _), part in zip(gradients, summed.split(sizes), strict=True):
            torch.div(part[:-1], part[-1], out=gradient)


def _sum_over_workers(own: Tensor) -> Tensor:
    """The same to the last bit everywhere."""
    num_workers = dist.get_world_size()
    if num_workers * len(own) > _GATHERED_NUMBERS:
        dist.all_reduce(own)
        return own
    everyone = own.new_empty(num_workers * len(own))
    dist.all_gather_single(everyone, own)
    return everyone.view(num_workers, -1).sum(dim=0)
