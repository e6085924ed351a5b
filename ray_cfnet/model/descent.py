"""Adam on weights that lie in one vector.

The networks are small: a step's cost is the number of operations, not their size. With all weights of a stage
as views of one vector, clipping, averaging over workers and Adam are a handful of operations each.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

Wait = Callable[[], None]
Sync = Callable[[Tensor, int], Wait | None]
"""Averages a gradient over all workers in place, weighted by each worker's number of rows.

Returns what must be called before the gradient is used, or None when it is ready.
"""


class Workers(Protocol):
    """Those who train together: gradients are averaged at once, or by the time they are needed."""

    def average(self, gradient: Tensor, num_rows: int) -> None: ...

    def average_later(self, gradient: Tensor, num_rows: int) -> Wait: ...


def alone(gradient: Tensor, num_rows: int) -> None:
    """The `Sync` of a single worker: nothing to average with."""


def as_one_vector(weights: Sequence[nn.Parameter]) -> Tensor:
    """Moves weights into one vector and makes them views of it. Their device and type must not change after."""
    vector = torch.cat([weight.detach().flatten() for weight in weights])
    for weight, part in zip(weights, vector.split([weight.numel() for weight in weights]), strict=True):
        weight.data = part.view_as(weight)
    return vector


class Descent:
    """Steps down the gradient of `weights`, which are views of `vector`, with its norm clipped."""

    def __init__(
        self, vector: Tensor, weights: Sequence[nn.Parameter], rate: float, clip: float, sync: Sync = alone
    ) -> None:
        self.vector = nn.Parameter(vector)
        self.weights = list(weights)
        self.rate = rate
        self.clip = clip
        self.sync = sync
        self.optimizer = torch.optim.Adam([self.vector], lr=rate, fused=True)
        self._begun: tuple[Tensor, Wait, float] | None = None

    def step(self, losses: Sequence[Tensor], factors: Sequence[float], num_rows: int) -> None:
        """One step on the mean over the rows of all workers of sum(factor * loss); a loss is a sum over rows.

        Only `weights` get gradients.
        """
        self.begin(losses, factors, num_rows)
        self.finish()

    def begin(self, losses: Sequence[Tensor], factors: Sequence[float], num_rows: int) -> None:
        """A step that waits for other workers only in `finish`; the weights must not be used before."""
        # Factors as gradients of the losses: nothing to multiply on the way forward or back.
        weighted = [loss.new_tensor(factor / max(num_rows, 1)) for loss, factor in zip(losses, factors, strict=True)]
        parts = torch.autograd.grad(losses, self.weights, weighted)
        gradient = torch.cat([part.flatten() for part in parts])
        wait = self.sync(gradient, num_rows)
        if wait is None:
            self._apply(gradient, self.rate)
        else:
            self._begun = gradient, wait, self.rate

    def finish(self) -> None:
        """Ends the step that was begun, if there is one."""
        if self._begun is not None:
            gradient, wait, rate = self._begun
            self._begun = None
            wait()
            self._apply(gradient, rate)

    def _apply(self, gradient: Tensor, rate: float) -> None:
        gradient *= (self.clip / (gradient.norm() + 1e-6)).clamp(max=1.0)
        self.vector.grad = gradient
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
