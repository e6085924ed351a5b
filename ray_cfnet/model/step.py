"""The three losses and the two-stage update of one mini-batch (paper, sections 3.2 and 3.3).

Stage 1 moves h and f on lambda_pred * L1. Stage 2 moves g alone on lambda_valid * L2 + lambda_prox * L3,
with h and f frozen: no gradient is computed for them and their dropout is off.

The paper's ablations of training are the settings `loss`, `proximity_loss`, `update`, `freeze` and
`label_smoothing`. Where h and f are not frozen (NoFreeze, SingleBP) their dropout is on, and gradients also reach
them through z, p and a soft target of L2; a hard target is a class, which has no gradient.

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


def cross_entropy(target: Tensor, probabilities: Tensor) -> Tensor:
    """(B,) cross entropy of two probability vectors; for two classes the binary one."""
    return -(target * probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()).sum(dim=1)


class TwoStageUpdate:
    """Two gradient steps for every mini-batch, each with its own Adam.

    `update: single` takes one step on all three losses instead, with the second Adam. `update: posthoc` takes the
    first step only in the first half of the run and the second only in the second half.
    """

    def __init__(
        self, net: CounterNet, settings: Training, rules: SoftRules, desired: int | None, sync: Sync = alone
    ) -> None:
        self.net = net
        self.settings = settings
        self.rules = rules
        self.desired = desired
        self.sync = sync
        self.class_loss = cross_entropy if settings.loss == "bce" else class_distance
        self.stage_1_weights = net.prediction_parameters()
        self.stage_2_weights = net.generator_parameters()
        if settings.update == "single" or not settings.freeze:
            self.stage_2_weights = [*self.stage_1_weights, *self.stage_2_weights]
        self.prediction_optimizer = torch.optim.Adam(self.stage_1_weights, lr=settings.learning_rate)
        self.generator_optimizer = torch.optim.Adam(self.stage_2_weights, lr=settings.learning_rate)
        self.set_progress(0.0)

    def set_progress(self, done: float) -> None:
        """Sets learning rates and stages for a point of the run between 0 (start) and 1 (end)."""
        posthoc = self.settings.update == "posthoc"
        self.moves_predictor, self.moves_generator = not posthoc or done < 0.5, not posthoc or done >= 0.5
        if posthoc:
            done = 2 * done % 1  # each half is a training of its own
        if self.settings.schedule == "cosine":
            share = 0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2
            for optimizer in (self.prediction_optimizer, self.generator_optimizer):
                optimizer.param_groups[0]["lr"] = self.settings.learning_rate * share

    def __call__(self, rows: Rows, labels: Tensor) -> Losses:
        """Trains on B rows. An empty batch still takes part in every `sync`.

        `labels` are class indices or, as floats, another model's probabilities of class 1 of two.
        """
        if self.settings.update == "single":
            prediction, validity, proximity = self._single_stage(rows, labels)
        else:
            prediction = self._stage_1(rows, labels)
            validity, proximity = self._stage_2(rows)
        return Losses(torch.tensor(float(len(rows))), prediction, validity, proximity)

    def _stage_1(self, rows: Rows, labels: Tensor) -> Tensor:
        self.net.train()
        _, probabilities = self.net.predict(self.net.encode(rows))
        loss = self._prediction_loss(labels, probabilities)
        if self.moves_predictor:
            self._descend(self.settings.lambda_pred * loss, self.stage_1_weights, self.prediction_optimizer, len(rows))
        return loss.detach()

    def _stage_2(self, rows: Rows) -> tuple[Tensor, Tensor]:
        learns = not self.settings.freeze
        self.net.train(learns)
        for part in self.net.generator_parts():
            part.train()
        with torch.set_grad_enabled(learns):
            z = self.net.encode(rows)
            p, probabilities = self.net.predict(z)
            target = self._validity_target(probabilities)
        validity, proximity = self._counterfactual_losses(rows, p, z, target)
        if self.moves_generator:
            loss = self.settings.lambda_valid * validity + self.settings.lambda_prox * proximity
            self._descend(loss, self.stage_2_weights, self.generator_optimizer, len(rows))
        return validity.detach(), proximity.detach()

    def _single_stage(self, rows: Rows, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.net.train()
        z = self.net.encode(rows)
        p, probabilities = self.net.predict(z)
        prediction = self._prediction_loss(labels, probabilities)
        validity, proximity = self._counterfactual_losses(rows, p, z, self._validity_target(probabilities))
        loss = (
            self.settings.lambda_pred * prediction
            + self.settings.lambda_valid * validity
            + self.settings.lambda_prox * proximity
        )
        self._descend(loss, self.stage_2_weights, self.generator_optimizer, len(rows))
        return prediction.detach(), validity.detach(), proximity.detach()

    def _prediction_loss(self, labels: Tensor, probabilities: Tensor) -> Tensor:
        """L1, summed over rows."""
        if labels.is_floating_point():
            target = torch.stack([1 - labels, labels], dim=1).to(probabilities.dtype)
        else:
            target = F.one_hot(labels, self.net.num_classes).to(probabilities.dtype)
        return self.class_loss(target, probabilities).sum()

    def _counterfactual_losses(self, rows: Rows, p: Tensor, z: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """L2 and L3, summed over rows."""
        x = self.net.layout.dense(rows)
        x_prime = self.net.soft(self.net.generate(p, self.net.generator_latent(rows, z)))
        _, reached = self.net.predict(self.net.encode_dense(self.rules.project(x, rows.codes, x_prime)))
        moved = x - x_prime
        distance = moved.abs() if self.settings.proximity_loss == "l1" else moved.square()
        return self.class_loss(target, reached).sum(), distance.mean(dim=1).sum()

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
