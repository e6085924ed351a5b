"""How firmly the predictor stands: the share of rows that keep their prediction under a small attack.

An attack may move every column of the encoded row by at most epsilon. FGSM takes one step of epsilon along
the sign of the gradient, PGD ten of epsilon / 4, back into the ball after each (paper, "Adversarial
Robustness" and appendix C.1). Neither has a random start: equal rows give equal figures.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ray_cfnet.model.net import CounterNet, Rows

PGD_STEPS = 10
_BATCH_ROWS = 4096


@dataclass
class StabilitySums:
    """Rows attacked, and how many kept their prediction at each epsilon."""

    epsilons: list[float]
    rows: int = 0
    fgsm: list[int] = field(default_factory=list)
    pgd: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fgsm = self.fgsm or [0] * len(self.epsilons)
        self.pgd = self.pgd or [0] * len(self.epsilons)

    def add(self, net: CounterNet, rows: Rows) -> None:
        """Attacks N rows; `net` must be in evaluation mode."""
        for start in range(0, len(rows), _BATCH_ROWS):
            x = net.layout.dense(rows.take(slice(start, start + _BATCH_ROWS)))
            predicted = _logits(net, x).argmax(dim=1).detach()
            uphill = _uphill(net, x, predicted)
            self.rows += len(x)
            for index, epsilon in enumerate(self.epsilons):
                self.fgsm[index] += _kept(net, x + epsilon * uphill, predicted)
                self.pgd[index] += _kept(net, _pgd(net, x, predicted, uphill, epsilon), predicted)

    def merge(self, other: "StabilitySums") -> None:
        self.rows += other.rows
        self.fgsm = [mine + theirs for mine, theirs in zip(self.fgsm, other.fgsm, strict=True)]
        self.pgd = [mine + theirs for mine, theirs in zip(self.pgd, other.pgd, strict=True)]

    def summary(self) -> dict[str, Any]:
        """The two curves, a share for each epsilon; None where no row was attacked."""
        curves = {
            name: [count / self.rows if self.rows else None for count in counts]
            for name, counts in (("fgsm", self.fgsm), ("pgd", self.pgd))
        }
        return {"rows": self.rows, "epsilons": self.epsilons, **curves}


def _logits(net: CounterNet, x: Tensor) -> Tensor:
    p, _ = net.predict(net.encode_dense(x))
    return net.classifier(p.flatten(1))  # a convolutional p has positions


def _kept(net: CounterNet, x: Tensor, predicted: Tensor) -> int:
    with torch.no_grad():
        return int((_logits(net, x).argmax(dim=1) == predicted).sum())


def _uphill(net: CounterNet, x: Tensor, predicted: Tensor) -> Tensor:
    """The sign of the cross-entropy's gradient with respect to x, for the class predicted at first.

    Cross-entropy is log(1 + exp(m)) with m = logsumexp(other logits) - own logit. The gradient of m has the
    same sign and does not vanish where the softmax saturates: a sure prediction is no excuse from the attack.
    """
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = _logits(net, x)
        own = logits.gather(1, predicted[:, None])[:, 0]
        others = logits.scatter(1, predicted[:, None], -torch.inf).logsumexp(dim=1)
        (gradient,) = torch.autograd.grad((others - own).sum(), x)
    return gradient.sign()


def _pgd(net: CounterNet, x: Tensor, predicted: Tensor, uphill: Tensor, epsilon: float) -> Tensor:
    """The attacked rows; `uphill` is the first step's direction, which no epsilon changes."""
    if epsilon == 0:
        return x
    moved = x
    for step in range(PGD_STEPS):
        direction = _uphill(net, moved, predicted) if step else uphill
        moved = (moved + epsilon / 4 * direction).clamp(x - epsilon, x + epsilon)
    return moved
