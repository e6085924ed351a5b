"""Attacks against brute force, where brute force is possible: a linear predictor and every corner of the ball."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ray_cfnet.explain.explainer import tensors
from ray_cfnet.model import robustness
from ray_cfnet.model.net import Layout, Rows
from ray_cfnet.model.robustness import StabilitySums
from ray_cfnet.tables.codec import encode
from tests.unit.helpers import people, untrained_bundle

EPSILONS = [0.0, 0.01, 0.05, 0.1, 0.3]


class Linear(nn.Module):
    """A predictor whose logits are a linear function of the encoded row."""

    def __init__(self, num_classes: int, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(num_classes)
        self.layout = Layout(4, (3,))
        self.classifier = nn.Linear(7, num_classes)
        with torch.no_grad():
            self.classifier.weight.mul_(scale)
            self.classifier.bias.mul_(scale)

    def encode_dense(self, x: Tensor) -> Tensor:
        return x

    def predict(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return z, torch.softmax(self.classifier(z), dim=1)


def some_rows(num_rows: int) -> Rows:
    generator = torch.Generator().manual_seed(0)
    return Rows(torch.rand(num_rows, 4, generator=generator), torch.randint(0, 3, (num_rows, 1), generator=generator))


def kept_at_every_corner(net: Any, rows: Rows, epsilon: float) -> int:
    corners = torch.tensor(list(product((-epsilon, epsilon), repeat=7)))
    kept = 0
    with torch.no_grad():
        for x in net.layout.dense(rows):
            kept += int((net.classifier(x + corners).argmax(1) == net.classifier(x).argmax()).all())
    return kept


@pytest.mark.parametrize("scale", [1.0, 2000.0])
def test_both_attacks_find_the_worst_corner_of_a_linear_predictor(scale: float) -> None:
    net: Any = Linear(2, scale)  # at scale 2000 the softmax is 0 or 1 and its own gradient vanishes
    rows = some_rows(300)
    sums = StabilitySums(EPSILONS)
    sums.add(net, rows)
    expected = [kept_at_every_corner(net, rows, epsilon) for epsilon in EPSILONS]
    assert sums.fgsm == sums.pgd == expected
    assert 0 < expected[-2] < 300


def test_no_attack_on_three_classes_is_stronger_than_brute_force() -> None:
    net: Any = Linear(3)
    rows = some_rows(300)
    sums = StabilitySums(EPSILONS)
    sums.add(net, rows)
    for index, epsilon in enumerate(EPSILONS):
        worst = kept_at_every_corner(net, rows, epsilon)
        assert sums.fgsm[index] >= worst
        assert sums.pgd[index] >= worst
    assert sums.pgd[-1] < 300


def test_nothing_changes_at_epsilon_zero_and_any_cut_gives_the_same() -> None:
    bundle = untrained_bundle()
    rows = tensors(encode(people(200), bundle.schema)[0], bundle.schema, torch.device("cpu"))
    whole, merged = StabilitySums(EPSILONS), StabilitySums(EPSILONS)
    whole.add(bundle.net, rows)
    for cut in (slice(0, 70), slice(70, 70), slice(70, 200)):
        part = StabilitySums(EPSILONS)
        part.add(bundle.net, rows.take(cut))
        merged.merge(part)
    assert merged == whole
    summary = whole.summary()
    assert summary["fgsm"][0] == summary["pgd"][0] == 1.0
    assert summary["rows"] == 200


def test_an_attack_stays_in_its_ball_and_leaves_no_gradients() -> None:
    bundle = untrained_bundle()
    rows = tensors(encode(people(50), bundle.schema)[0], bundle.schema, torch.device("cpu"))
    x = bundle.net.layout.dense(rows)
    predicted = robustness._logits(bundle.net, x).argmax(dim=1)
    moved = robustness._pgd(bundle.net, x, predicted, robustness._uphill(bundle.net, x, predicted), 0.1)
    assert 0.05 < (moved - x).abs().max() <= 0.1 + 1e-6
    assert all(weight.grad is None for weight in bundle.net.parameters())


def test_no_rows_are_unknown_not_zero() -> None:
    assert StabilitySums([0.1]).summary() == {"rows": 0, "epsilons": [0.1], "fgsm": [None], "pgd": [None]}
