"""The three losses and the two-stage update of one mini-batch (paper, sections 3.2 and 3.3).

Stage 1 moves h and f on lambda_pred * L1. Stage 2 moves g alone on lambda_valid * L2 + lambda_prox * L3,
with h and f frozen: no gradient is computed for them and their dropout is off.

A class target is compared as half the squared distance of two probability vectors. For two classes that
is the paper's (y - y_hat)^2 to the letter, and it asks for nothing special when there are more.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ray_cfnet.config import Training
from ray_cfnet.model.net import CounterNet, Rows
from ray_cfnet.model.rules import SoftRules

SMOOTHING = 0.03

Sync = Callable[[list[Tensor], int], None]
"""Averages gradients over all workers in place, weighted by each worker's number of rows."""


def alone(gradients: list[Tensor], num_rows: int) -> None:
    """The `Sync` of a single worker: nothing to average with."""


@dataclass
class Losses:
    """Sums over rows, so that batches and workers merge by addition."""

    num_rows: Tensor
    prediction: Tensor
    validity: Tensor
    proximity: Tensor


def desired_classes(probabilities: Tensor, desired: int | None) -> Tensor:
    """The class each row should reach: the configured one, or, of two, the one not predicted."""
    predicted = probabilities.argmax(dim=1)
    if desired is not None:
        return torch.full_like(predicted, desired)
    if probabilities.shape[1] != 2:
        raise ValueError("the opposite class exists for two classes only; name the desired class")
    return 1 - predicted


def class_distance(target: Tensor, probabilities: Tensor) -> Tensor:
    """(B,) half squared distance of two probability vectors."""
    return 0.5 * (target - probabilities).square().sum(dim=1)


class TwoStageUpdate:
    """Two gradient steps for every mini-batch, each with its own Adam."""

    def __init__(
        self, net: CounterNet, settings: Training, rules: SoftRules, desired: int | None, sync: Sync = alone
    ) -> None:
        self.net = net
        self.settings = settings
        self.rules = rules
        self.desired = desired
        self.sync = sync
        self.prediction_weights = net.prediction_parameters()
        self.generator_weights = net.generator_parameters()
        self.prediction_optimizer = torch.optim.Adam(self.prediction_weights, lr=settings.learning_rate)
        self.generator_optimizer = torch.optim.Adam(self.generator_weights, lr=settings.learning_rate)

    def set_progress(self, done: float) -> None:
        """Sets both learning rates for a point of the run between 0 (start) and 1 (end)."""
        if self.settings.schedule == "cosine":
            share = 0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2
            for optimizer in (self.prediction_optimizer, self.generator_optimizer):
                optimizer.param_groups[0]["lr"] = self.settings.learning_rate * share

    def __call__(self, rows: Rows, labels: Tensor) -> Losses:
        """Trains on B rows with class indices `labels`. An empty batch still takes part in every `sync`."""
        prediction = self._stage_1(rows, labels)
        validity, proximity = self._stage_2(rows)
        return Losses(torch.tensor(float(len(rows))), prediction, validity, proximity)

    def _stage_1(self, rows: Rows, labels: Tensor) -> Tensor:
        self.net.train()
        _, probabilities = self.net.predict(self.net.encode(rows))
        target = F.one_hot(labels, self.net.num_classes).to(probabilities.dtype)
        loss = class_distance(target, probabilities).sum()
        self._descend(self.settings.lambda_pred * loss, self.prediction_weights, self.prediction_optimizer, len(rows))
        return loss.detach()

    def _stage_2(self, rows: Rows) -> tuple[Tensor, Tensor]:
        self.net.eval()
        self.net.generator.train()
        x = self.net.layout.dense(rows)
        with torch.no_grad():
            z = self.net.encode(rows)
            p, probabilities = self.net.predict(z)
            target = self._validity_target(probabilities)
        x_prime = self.net.soft(self.net.generate(p, z))
        _, reached = self.net.predict(self.net.encode_dense(self.rules.project(x, rows.codes, x_prime)))
        validity = class_distance(target, reached).sum()
        proximity = (x - x_prime).square().mean(dim=1).sum()
        self._descend(
            self.settings.lambda_valid * validity + self.settings.lambda_prox * proximity,
            self.generator_weights,
            self.generator_optimizer,
            len(rows),
        )
        return validity.detach(), proximity.detach()

    def _validity_target(self, probabilities: Tensor) -> Tensor:
        if self.settings.validity_target == "soft" and self.desired is None:
            return 1 - probabilities
        target = F.one_hot(desired_classes(probabilities, self.desired), self.net.num_classes).to(probabilities.dtype)
        if self.settings.label_smoothing:
            target = target * (1 - 2 * SMOOTHING) + 2 * SMOOTHING / self.net.num_classes
        return target

    def _descend(
        self, loss_sum: Tensor, weights: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer, num_rows: int
    ) -> None:
        """One step on the mean loss over the rows of all workers. Only `weights` get gradients."""
        gradients = list(torch.autograd.grad(loss_sum / max(num_rows, 1), weights))
        self.sync(gradients, num_rows)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        nn.utils.clip_grad_norm_(weights, self.settings.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
