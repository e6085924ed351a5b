"""The declared rules as a differentiable projection, so that g learns to work with what it may change.

The exact projection, on written values, is tables/constraints.py; this is its soft twin inside stage 2.
"""

import torch
from torch import Tensor

from ray_cfnet.model.net import Layout
from ray_cfnet.tables.schema import TableSchema


class SoftRules:
    """x, x' -> x'': immutable features as in x, directions and bounds kept, forbidden categories at 0."""

    def __init__(self, schema: TableSchema, layout: Layout) -> None:
        self.num_continuous = layout.num_continuous
        lowest = torch.full((self.num_continuous,), -torch.inf)
        highest = torch.full((self.num_continuous,), torch.inf)
        immutable = torch.zeros(layout.width, dtype=torch.bool)
        self.increase = torch.zeros(self.num_continuous, dtype=torch.bool)
        self.decrease = torch.zeros(self.num_continuous, dtype=torch.bool)
        for column, number in enumerate(schema.continuous):
            immutable[column] = number.immutable
            self.increase[column] = number.direction == "increase"
            self.decrease[column] = number.direction == "decrease"
            lower, upper = number.bounds
            if lower is not None:
                lowest[column] = (lower - number.lower) / number.span
            if upper is not None:
                highest[column] = (upper - number.lower) / number.span
        self.lowest, self.highest, self.immutable = lowest, highest, immutable
        self.directed_blocks: list[tuple[int, slice, Tensor]] = []
        for column, category in enumerate(schema.categorical):
            start, size = layout.block_starts[column], layout.category_sizes[column]
            immutable[start : start + size] = category.immutable
            if category.direction != "any" and not category.immutable:
                # allowed[i, j]: may a row with category i get category j?
                allowed = torch.ones(size, size).triu()
                allowed = allowed if category.direction == "increase" else allowed.T.contiguous()
                self.directed_blocks.append((column, slice(start, start + size), allowed))

    def to(self, device: torch.device) -> "SoftRules":
        for name in ("lowest", "highest", "immutable", "increase", "decrease"):
            setattr(self, name, getattr(self, name).to(device))
        self.directed_blocks = [(c, block, allowed.to(device)) for c, block, allowed in self.directed_blocks]
        return self

    def project(self, x: Tensor, codes: Tensor, x_prime: Tensor) -> Tensor:
        """x'' (B, D) of encoded rows x (B, D) with category codes (B, K) and soft candidates x' (B, D)."""
        count = self.num_continuous
        numbers = torch.minimum(torch.maximum(x_prime[:, :count], self.lowest), self.highest)
        numbers = torch.where(self.increase, torch.maximum(numbers, x[:, :count]), numbers)
        numbers = torch.where(self.decrease, torch.minimum(numbers, x[:, :count]), numbers)
        projected = torch.cat([numbers, x_prime[:, count:]], dim=1)
        for column, block, allowed in self.directed_blocks:
            kept = projected[:, block] * allowed[codes[:, column]]
            # The row's own category is always allowed; the addend keeps 0/0 away when all weight is forbidden.
            kept = (kept + 1e-6 * x[:, block]) / (kept.sum(dim=1, keepdim=True) + 1e-6)
            projected = torch.cat([projected[:, : block.start], kept, projected[:, block.stop :]], dim=1)
        return torch.where(self.immutable, x, projected)
