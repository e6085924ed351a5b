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
import time
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ray_cfnet.config import Training
from ray_cfnet.model.descent import Average, Descent, as_one_vector
from ray_cfnet.model.net import CounterNet, Rows
from ray_cfnet.model.rules import SoftRules

SMOOTHING = 0.03
DENSE_WIDTH = 256


class Pace(NamedTuple):
    """What a point of the run asks of a step."""

    rate: float
    predictor: bool
    """Whether stage 1 moves h and f."""
    generator: bool
    """Whether stage 2 moves g."""


@dataclass
class Losses:
    """Sums over rows, so that batches and workers merge by addition."""

    num_rows: int
    prediction: Tensor
    validity: Tensor
    proximity: Tensor
    seconds_stage_1: float
    """Wall-clock. On a GPU this is the time to submit the stage: its kernels run later, and waiting for them would
    cost more than the figure is worth."""
    seconds_stage_2: float
    """0 for `update: single`, whose one step counts as stage 1."""


def desired_classes(probabilities: Tensor, desired: int | None) -> Tensor:
    """The class each row should reach: the configured one, or, of two, the one not predicted."""
    predicted = probabilities.argmax(dim=1)
    if desired is not None:
        return torch.full_like(predicted, desired)
    if probabilities.shape[1] != 2:
        raise ValueError("the opposite class exists for two classes only; name the desired class")
    return 1 - predicted


def class_distance(target: Tensor, probabilities: Tensor) -> Tensor:
    """Half the squared distance of probability vectors, summed over rows."""
    return 0.5 * F.mse_loss(probabilities, target, reduction="sum")


def cross_entropy(target: Tensor, probabilities: Tensor) -> Tensor:
    """Cross entropy of probability vectors, summed over rows; for two classes the binary one."""
    return -(target * probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()).sum()


class TwoStageUpdate:
    """Two gradient steps for every mini-batch, each with its own Adam.

    `update: single` takes one step on all three losses instead, with the second Adam. `update: posthoc` takes the
    first step only in the first half of the run and the second only in the second half.

    With several workers a gradient travels while the other stage computes. Stage 1 of a batch needs nothing of the
    stage 2 before it but that h and f stay, so it goes first, and both gradients have half a step to arrive:

        stage 1 of batch 2 | stage 2 of batch 1 | stage 1 of batch 3 | stage 2 of batch 2 | ...
                           `- moves h and f ----'
                                                `- moves g ----------'

    The weights that each stage sees are those of one stage after the other.
    """

    def __init__(
        self,
        net: CounterNet,
        settings: Training,
        rules: SoftRules,
        desired: int | None,
        average: Average | None = None,
    ) -> None:
        """Without `average` it trains alone."""
        self.net = net
        self.settings = settings
        self.rules = rules
        self.desired = desired
        self.class_loss = cross_entropy if settings.loss == "bce" else class_distance
        self.proximity_loss = F.l1_loss if settings.proximity_loss == "l1" else F.mse_loss
        one_hot = torch.eye(net.num_classes)  # a row a class
        hard_targets = one_hot
        if settings.label_smoothing:
            hard_targets = one_hot * (1 - 2 * SMOOTHING) + 2 * SMOOTHING / net.num_classes
        stage_1, stage_2 = net.prediction_parameters(), net.generator_parameters()
        everything = as_one_vector([*stage_1, *stage_2])
        cut = sum(weight.numel() for weight in stage_1)
        self.one_hot, self.hard_targets = one_hot.to(everything), hard_targets.to(everything)
        self.prediction = Descent(everything[:cut], stage_1, settings.grad_clip, average)
        separate = settings.update != "single" and settings.freeze
        if not separate:
            cut, stage_2 = 0, [*stage_1, *stage_2]
        self.generator = Descent(everything[cut:], stage_2, settings.grad_clip, average)
        self.overlaps = separate and average is not None
        """Whether a batch's stage 2 waits for the stage 1 of the next."""
        self._waiting: tuple[Rows, Tensor, Pace] | None = None
        self.set_progress(0.0)

    def set_progress(self, done: float) -> None:
        """Sets learning rate and stages for a point of the run between 0 (start) and 1 (end)."""
        posthoc = self.settings.update == "posthoc"
        predictor, generator = not posthoc or done < 0.5, not posthoc or done >= 0.5
        if posthoc:
            done = 2 * done % 1  # each half is a training of its own
        rate = self.settings.learning_rate
        if self.settings.schedule == "cosine":
            rate *= 0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2
        self.pace = Pace(rate, predictor, generator)

    def __call__(self, rows: Rows, labels: Tensor) -> Losses:
        """Trains on B rows. An empty batch still takes part in every average.

        `labels` are class indices or, as floats, another model's probabilities of class 1 of two. With several workers
        a batch's stage 2, and its losses, come with the next call, the last ones with `finish`.
        """
        x = self.net.layout.dense(rows)
        started = time.perf_counter()
        if self.settings.update == "single":
            losses = self._single_stage(rows, x, labels)
            return Losses(len(rows), *losses, time.perf_counter() - started, 0.0)
        prediction = self._stage_1(rows, x, labels)
        between = time.perf_counter()
        batch = rows, x, self.pace
        ready, self._waiting = (self._waiting, batch) if self.overlaps else (batch, None)
        validity, proximity = self._stage_2(*ready) if ready else prediction.new_zeros(2).unbind()
        ended = time.perf_counter()
        self.prediction.finish()
        waited = time.perf_counter() - ended
        return Losses(len(rows), prediction, validity, proximity, between - started + waited, ended - between)

    def finish(self) -> Losses:
        """Ends the last step, and returns the losses that no call has told: the weights are whole then."""
        started = time.perf_counter()
        waiting, self._waiting = self._waiting, None
        nothing = self.hard_targets.new_zeros(())
        validity, proximity = self._stage_2(*waiting) if waiting else (nothing, nothing)
        self.generator.finish()
        return Losses(0, nothing, validity, proximity, 0.0, time.perf_counter() - started)

    def _stage_1(self, rows: Rows, x: Tensor, labels: Tensor) -> Tensor:
        self.net.set_dropout(predictor=True, generator=True)
        _, probabilities = self.net.predict(self._encode(rows, x))
        loss = self._prediction_loss(labels, probabilities)
        if self.pace.predictor:
            self.prediction.begin([loss], [self.settings.lambda_pred], len(rows), self.pace.rate)
        if not self.overlaps:
            self.prediction.finish()
        return loss.detach()

    def _stage_2(self, rows: Rows, x: Tensor, pace: Pace) -> tuple[Tensor, Tensor]:
        learns = not self.settings.freeze
        self.net.set_dropout(predictor=learns, generator=True)
        with torch.set_grad_enabled(learns):
            z = self._encode(rows, x)
            p, probabilities = self.net.predict(z)
            target = self._validity_target(probabilities)
        self.generator.finish()
        validity, proximity = self._counterfactual_losses(rows, x, p, z, target)
        if pace.generator:
            factors = (self.settings.lambda_valid, self.settings.lambda_prox)
            self.generator.begin([validity, proximity], factors, len(rows), pace.rate)
        if not self.overlaps:
            self.generator.finish()
        return validity.detach(), proximity.detach()

    def _single_stage(self, rows: Rows, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.net.set_dropout(predictor=True, generator=True)
        z = self._encode(rows, x)
        p, probabilities = self.net.predict(z)
        prediction = self._prediction_loss(labels, probabilities)
        validity, proximity = self._counterfactual_losses(rows, x, p, z, self._validity_target(probabilities))
        factors = (self.settings.lambda_pred, self.settings.lambda_valid, self.settings.lambda_prox)
        self.generator.begin([prediction, validity, proximity], factors, len(rows), self.pace.rate)
        self.generator.finish()
        return prediction.detach(), validity.detach(), proximity.detach()

    def _prediction_loss(self, labels: Tensor, probabilities: Tensor) -> Tensor:
        """L1, summed over rows."""
        if labels.is_floating_point():
            target = torch.stack([1 - labels, labels], dim=1).to(probabilities.dtype)
        else:
            target = self.one_hot.index_select(0, labels)
        return self.class_loss(target, probabilities)

    def _encode(self, rows: Rows, x: Tensor) -> Tensor:
        """z of rows whose dense matrix x is there anyway: of a narrow one the product is cheaper than the gather."""
        return self.net.encode_dense(x) if x.shape[1] <= DENSE_WIDTH else self.net.encode(rows)

    def _counterfactual_losses(
        self, rows: Rows, x: Tensor, p: Tensor, z: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """L2 and L3, summed over rows."""
        raw = self.net.generate(p, self.net.generator_latent(rows, z), rows)
        x_prime = self.net.soft(raw)
        feasible = self.rules.project(x, rows.codes, raw, x_prime)
        gates = self.net.gates(raw)
        if gates is not None:
            x_prime, feasible = torch.lerp(x, x_prime, gates), torch.lerp(x, feasible, gates)
        _, reached = self.net.predict(self.net.encode_dense(feasible))
        return self.class_loss(target, reached), self.proximity_loss(x_prime, x, reduction="sum") / x.shape[1]

    def _validity_target(self, probabilities: Tensor) -> Tensor:
        if self.settings.validity_target == "soft" and self.desired is None:
            return 1 - probabilities
        return self.hard_targets.index_select(0, desired_classes(probabilities, self.desired))
