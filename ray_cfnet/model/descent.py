"""Adam on weights that lie in one vector.

The networks are small: a step's cost is the number of operations, not their size. With all weights of a stage
as views of one vector, clipping, averaging over workers and Adam are a handful of operations each.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Wait = Callable[[], None]
Average = Callable[[Tensor, int], Wait]
"""Averages a gradient over all workers in place, weighted by each worker's number of rows.

Returns what must be called before the gradient is used.
"""


def as_one_vector(weights: Sequence[nn.Parameter]) -> Tensor:
    """Moves weights into one vector and makes them views of it. Their device and type must not change after."""
    vector = torch.cat([weight.detach().flatten() for weight in weights])
    for weight, part in zip(weights, vector.split([weight.numel() for weight in weights]), strict=True):
        weight.data = part.view_as(weight)
    return vector


class Descent:
    """Steps down the gradient of `weights`, which are views of `vector`, with its norm clipped."""

    def __init__(
        self,
        vector: Tensor,
        weights: Sequence[nn.Parameter],
        clip: float,
        average: Average | None = None,
    ) -> None:
        """Without `average` it trains alone."""
        self.vector = vector
        self.weights = list(weights)
        self.clip = clip
        self.average = average
        self.state = {
            "exp_avg": torch.zeros_like(vector),
            "exp_avg_sq": torch.zeros_like(vector),
            "step": torch.zeros((), dtype=torch.float32, device=vector.device),
        }
        """Of Adam, by torch's names."""
        self._begun: tuple[Tensor, Wait | None, float] | None = None

    def begin(self, losses: Sequence[Tensor], factors: Sequence[float], num_rows: int, rate: float) -> None:
        """One step on the mean over the rows of all workers of sum(factor * loss); a loss is a sum over rows.

        Only `weights` get gradients. They move in `finish`, which waits for the other workers.
        """
        # Factors as gradients of the losses: nothing to multiply on the way forward or back.
        weighted = [loss.new_tensor(factor / max(num_rows, 1)) for loss, factor in zip(losses, factors, strict=True)]
        parts = torch.autograd.grad(losses, self.weights, weighted)
        gradient = torch.cat([part.flatten() for part in parts])
        wait = self.average(gradient, num_rows) if self.average else None
        self._begun = gradient, wait, rate

    def finish(self) -> None:
        """Ends the step that was begun, if there is one."""
        if self._begun is not None:
            gradient, wait, rate = self._begun
            self._begun = None
            if wait is not None:
                wait()
            gradient *= (self.clip / (torch.linalg.vector_norm(gradient) + 1e-6)).clamp(max=1.0)
            self._adam(gradient, rate)

    def _adam(self, gradient: Tensor, rate: float) -> None:
        """What `torch.optim.Adam(fused=True)` does with torch's defaults, without its preparations.

        Those took a sixth of a small step: hooks, groups of parameters, ranges for the profiler.
        """
        self.state["step"] += 1
        torch._fused_adam_(
            [self.vector],
            [gradient],
            [self.state["exp_avg"]],
            [self.state["exp_avg_sq"]],
            [],
            [self.state["step"]],
            lr=rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )
