"""The declared rules as a differentiable projection, so that g learns to work with what it may change.

The exact projection, on written values, is tables/constraints.py; this is its soft twin inside stage 2.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ray_cfnet.config.ruletext import Relation
from ray_cfnet.model.net import Layout
from ray_cfnet.tables.schema import TableSchema, permitted_changes


class SoftRules:
    """x, x' -> x'': immutable features as in x, directions, bounds and max_change kept, forbidden categories at 0.

    Every encoded column has a range of its own and a range around x; both are one clamp of x'. A category that may
    change to some others only has no weight on the rest. Listed numbers count as the range they span. Of the rules
    between features `a <= b` is kept as far as the ranges let it; steps and tolerances have no soft form.
    """

    def __init__(self, schema: TableSchema, layout: Layout) -> None:
        self.block_sizes = layout.block_sizes
        self.lowest = torch.full((layout.width,), -torch.inf)
        self.highest = torch.full((layout.width,), torch.inf)
        self.room_down = torch.full((layout.width,), torch.inf)
        self.room_up = torch.full((layout.width,), torch.inf)
        self.zero, self.share = torch.zeros(layout.width), torch.full((layout.width,), torch.nan)
        for column, number in enumerate(schema.continuous):
            lower, upper = number.bounds
            if number.allowed is not None:
                lower = max(number.allowed[0], -math.inf if lower is None else lower)
                upper = min(number.allowed[-1], math.inf if upper is None else upper)
            if lower is not None:
                self.lowest[column] = (lower - number.lower) / number.span
            if upper is not None:
                self.highest[column] = (upper - number.lower) / number.span
            if number.max_change is not None:
                self.room_down[column] = self.room_up[column] = number.max_change / number.span
            if number.max_change_percent is not None:
                self.zero[column] = -number.lower / number.span
                self.share[column] = number.max_change_percent / 100
            if number.immutable or number.direction == "increase":
                self.room_down[column] = 0.0
            if number.immutable or number.direction == "decrease":
                self.room_up[column] = 0.0
        self.has_listed = any(number.allowed is not None for number in schema.continuous)
        self.has_shares = bool(self.share.isfinite().any())
        self.orders = [_Order.of(rule, schema) for rule in schema.rules if rule.kind == "at_most"]
        self.restricted_blocks: dict[int, Tensor] = {}
        for column, category in enumerate(schema.categorical):
            start, size = layout.block_starts[column], layout.category_sizes[column]
            if category.immutable:
                self.room_down[start : start + size] = self.room_up[start : start + size] = 0.0
            elif category.is_restricted:
                # [i, j]: -inf where a row with category i may not get category j
                forbidden = torch.from_numpy(~permitted_changes(category))
                self.restricted_blocks[column] = torch.zeros(size, size).masked_fill(forbidden, -torch.inf)

    def to(self, device: torch.device) -> "SoftRules":
        for name in ("lowest", "highest", "room_down", "room_up", "zero", "share"):
            setattr(self, name, getattr(self, name).to(device))
        self.restricted_blocks = {column: penalty.to(device) for column, penalty in self.restricted_blocks.items()}
        return self

    def project(self, x: Tensor, codes: Tensor, raw: Tensor, x_prime: Tensor) -> Tensor:
        """x'' (B, D) of encoded rows x (B, D) with category codes (B, K).

        `raw` is g's output before its last activations, `x_prime` after: both (B, D).
        """
        lowest, highest = self._ranges(x)
        projected = torch.clamp(x_prime, lowest, highest)
        for order in self.orders:
            projected = order.kept(projected, lowest, highest)
        if self.restricted_blocks:
            parts = list(projected.split(self.block_sizes, dim=1))
            raw_parts = raw[:, : x.shape[1]].split(self.block_sizes, dim=1)
            for column, penalty in self.restricted_blocks.items():
                parts[1 + column] = torch.softmax(raw_parts[1 + column] + penalty[codes[:, column]], dim=1)
            projected = torch.cat(parts, dim=1)
        return projected

    def _ranges(self, x: Tensor) -> tuple[Tensor, Tensor]:
        down, up = self.room_down, self.room_up
        if self.has_shares:
            room = ((x - self.zero).abs() * self.share).nan_to_num(nan=torch.inf)
            down, up = torch.minimum(down, room), torch.minimum(up, room)
        if not self.has_listed:
            return torch.maximum(x - down, self.lowest), torch.minimum(x + up, self.highest)
        # A row may lie outside of what is listed, and may always stay.
        lowest, highest = torch.minimum(self.lowest, x), torch.maximum(self.highest, x)
        return torch.maximum(x - down, lowest), torch.minimum(x + up, highest)


@dataclass(frozen=True)
class _Order:
    """`a <= b` of two encoded columns: b in units of a is `slope * b + start`."""

    first: int
    second: int
    slope: float
    start: float

    @classmethod
    def of(cls, rule: Relation, schema: TableSchema) -> "_Order":
        first, second = schema.position(rule.first), schema.position(rule.second)
        low, high = schema.continuous[first], schema.continuous[second]
        return cls(first, second, high.span / low.span, (high.lower - low.lower) / low.span)

    def kept(self, projected: Tensor, lowest: Tensor, highest: Tensor) -> Tensor:
        """a goes down to b, and what its range does not let it do, b goes up."""
        a, b = projected[:, self.first], projected[:, self.second]
        a = torch.maximum(torch.minimum(a, self.slope * b + self.start), lowest[:, self.first])
        b = torch.minimum(torch.maximum(b, (a - self.start) / self.slope), highest[:, self.second])
        projected = projected.clone()
        projected[:, self.first], projected[:, self.second] = a, b
        return projected
