"""The declared rules as a differentiable projection, so that g learns to work with what it may change.

The exact projection, on written values, is tables/constraints.py; this is its soft twin inside stage 2.
"""

import torch
from torch import Tensor

from ray_cfnet.model.net import Layout
from ray_cfnet.tables.schema import TableSchema


class SoftRules:
    """x, x' -> x'': immutable features as in x, directions and bounds kept, forbidden categories at 0.

    Every encoded column has a range of its own and a range around x; both are one clamp of x'. A category that may
    change to some others only has no weight on the rest.
    """

    def __init__(self, schema: TableSchema, layout: Layout) -> None:
        self.block_sizes = layout.block_sizes
        self.lowest = torch.full((layout.width,), -torch.inf)
        self.highest = torch.full((layout.width,), torch.inf)
        self.room_down = torch.full((layout.width,), torch.inf)
        self.room_up = torch.full((layout.width,), torch.inf)
        for column, number in enumerate(schema.continuous):
            lower, upper = number.bounds
            if lower is not None:
                self.lowest[column] = (lower - number.lower) / number.span
            if upper is not None:
                self.highest[column] = (upper - number.lower) / number.span
            if number.immutable or number.direction == "increase":
                self.room_down[column] = 0.0
            if number.immutable or number.direction == "decrease":
                self.room_up[column] = 0.0
        self.directed_blocks: dict[int, Tensor] = {}
        for column, category in enumerate(schema.categorical):
            start, size = layout.block_starts[column], layout.category_sizes[column]
            if category.immutable:
                self.room_down[start : start + size] = self.room_up[start : start + size] = 0.0
            elif category.direction != "any":
                # [i, j]: -inf where a row with category i may not get category j
                forbidden = torch.ones(size, size).tril(-1).bool()
                forbidden = forbidden if category.direction == "increase" else forbidden.T
                self.directed_blocks[column] = torch.zeros(size, size).masked_fill(forbidden, -torch.inf)

    def to(self, device: torch.device) -> "SoftRules":
        for name in ("lowest", "highest", "room_down", "room_up"):
            setattr(self, name, getattr(self, name).to(device))
        self.directed_blocks = {column: penalty.to(device) for column, penalty in self.directed_blocks.items()}
        return self

    def project(self, x: Tensor, codes: Tensor, raw: Tensor, x_prime: Tensor) -> Tensor:
        """x'' (B, D) of encoded rows x (B, D) with category codes (B, K).

        `raw` is g's output before its last activations, `x_prime` after: both (B, D).
        """
        lowest = torch.maximum(x - self.room_down, self.lowest)
        highest = torch.minimum(x + self.room_up, self.highest)
        projected = torch.clamp(x_prime, lowest, highest)
        if self.directed_blocks:
            parts = list(projected.split(self.block_sizes, dim=1))
            raw_parts = raw[:, : x.shape[1]].split(self.block_sizes, dim=1)
            for column, penalty in self.directed_blocks.items():
                parts[1 + column] = torch.softmax(raw_parts[1 + column] + penalty[codes[:, column]], dim=1)
            projected = torch.cat(parts, dim=1)
        return projected
