"""The two-stage update against the paper's formulas, written out with plain autograd and plain Adam."""

import copy
import time

import pytest
import torch
from torch import nn

from ray_cfnet.config import Training
from ray_cfnet.model.descent import Average
from ray_cfnet.model.net import CounterNet, Rows
from ray_cfnet.model.rules import SoftRules
from ray_cfnet.model.step import TwoStageUpdate, desired_classes
from ray_cfnet.tables.schema import Categorical, Continuous, TableSchema, Target
from tests.unit.test_net import LAYOUT, make_net, one_hot, some_rows


def schema(**rules: dict) -> TableSchema:
    """Two numbers and two categories, as in LAYOUT; `rules` by feature name."""
    return TableSchema(
        (
            Continuous("a", "double", 0.0, 1.0, None, **rules.get("a", {})),
            Continuous("b", "double", 0.0, 1.0, None, **rules.get("b", {})),
            Categorical("c", "string", ("x", "y", "z"), **rules.get("c", {})),
            Categorical("d", "string", ("no", "yes"), **rules.get("d", {})),
        ),
        Target("t", "int64", (0, 1)),
    )


def make_update(
    net: CounterNet, desired: int | None = None, average: Average | None = None, **settings: object
) -> TwoStageUpdate:
    return TwoStageUpdate(net, Training.model_validate(settings), SoftRules(schema(), LAYOUT), desired, average)


def labels(num_rows: int = 64, num_classes: int = 2) -> torch.Tensor:
    return torch.randint(num_classes, (num_rows,), generator=torch.Generator().manual_seed(5))


def plain_adam(weights: list[nn.Parameter], loss: torch.Tensor, learning_rate: float, clip: float) -> None:
    """The first step of Adam, by its formula: after bias correction, g / (|g| + eps)."""
    gradients = torch.autograd.grad(loss, weights)
    norm = torch.sqrt(sum((gradient**2).sum() for gradient in gradients))
    scale = min(1.0, clip / (norm.item() + 1e-6))
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            clipped = gradient * scale
            weight -= learning_rate * clipped / (clipped.abs() + 1e-8)


def test_one_update_is_the_papers_two_gradient_steps() -> None:
    net, rows, y = make_net(), some_rows(), labels()
    expected = copy.deepcopy(net)
    losses = make_update(net, learning_rate=0.01)(rows, y)

    x = one_hot(rows)
    _, y_hat = expected.predict(expected.encode_dense(x))
    loss_1 = ((y - y_hat[:, 1]) ** 2).mean()
    plain_adam(expected.prediction_parameters(), 1.0 * loss_1, 0.01, 0.5)
    with torch.no_grad():
        z = expected.encode_dense(x)
        p, y_hat = expected.predict(z)
        flipped = 1 - y_hat[:, 1].round()
        target = torch.where(flipped == 1, 0.97, 0.03)
    x_prime = expected.soft(expected.generate(p, z))
    _, y_cf = expected.predict(expected.encode_dense(x_prime))
    loss_2 = ((target - y_cf[:, 1]) ** 2).mean()
    loss_3 = ((x - x_prime) ** 2).mean()
    plain_adam(expected.generator_parameters(), 0.2 * loss_2 + 0.1 * loss_3, 0.01, 0.5)

    torch.testing.assert_close(losses.prediction / 64, loss_1)
    torch.testing.assert_close(losses.validity / 64, loss_2)
    torch.testing.assert_close(losses.proximity / 64, loss_3)
    for (name, mine), theirs in zip(net.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, msg=lambda text, name=name: f"{name}: {text}", atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("generator_kind", ["plain", "gated"])
@pytest.mark.parametrize("desired", [None, 1])
def test_stage_2_moves_no_bit_of_encoder_or_predictor(desired: int | None, generator_kind: str) -> None:
    net = make_net(dropout=0.3, generator_kind=generator_kind)
    update = make_update(net, desired)
    update(some_rows(), labels())
    before = copy.deepcopy(net.state_dict())
    update._stage_2(some_rows(seed=9), one_hot(some_rows(seed=9)), update.pace)
    for name, weight in net.state_dict().items():
        assert torch.equal(weight, before[name]) != name.startswith("generator"), name


def test_stage_1_moves_no_bit_of_the_generator() -> None:
    net = make_net(dropout=0.3)
    update = make_update(net)
    before = copy.deepcopy(net.state_dict())
    update._stage_1(some_rows(), one_hot(some_rows()), labels())
    for name, weight in net.state_dict().items():
        assert torch.equal(weight, before[name]) == name.startswith("generator"), name


def test_soft_target_is_one_minus_the_prediction() -> None:
    probabilities = torch.tensor([[0.8, 0.2], [0.1, 0.9]])
    update = make_update(make_net(), validity_target="soft")
    torch.testing.assert_close(update._validity_target(probabilities), torch.tensor([[0.2, 0.8], [0.9, 0.1]]))


def test_hard_target_without_smoothing_is_the_flipped_class() -> None:
    probabilities = torch.tensor([[0.8, 0.2], [0.1, 0.9]])
    update = make_update(make_net(), label_smoothing=False)
    assert torch.equal(update._validity_target(probabilities), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))


def test_smoothed_targets_are_probabilities_for_many_classes() -> None:
    update = make_update(make_net(num_classes=100), desired=4)
    target = update._validity_target(torch.full((3, 100), 1 / 100))
    torch.testing.assert_close(target.sum(1), torch.ones(3))
    assert (target.argmax(1) == 4).all()


def test_opposite_of_more_than_two_classes_does_not_exist() -> None:
    with pytest.raises(ValueError, match="name the desired class"):
        desired_classes(torch.full((2, 3), 1 / 3), None)


def test_an_empty_batch_leaves_the_weights_and_gives_zero_loss() -> None:
    net = make_net()
    before = copy.deepcopy(net.state_dict())
    empty = Rows(torch.empty(0, 2), torch.empty(0, 2, dtype=torch.int64))
    losses = make_update(net)(empty, torch.empty(0, dtype=torch.int64))
    assert losses.prediction == losses.validity == losses.proximity == losses.num_rows == 0
    assert all(torch.equal(weight, before[name]) for name, weight in net.state_dict().items())


def test_training_learns_to_predict_and_to_flip_the_soft_counterfactual() -> None:
    net, rows = make_net(), some_rows(512)
    y = (rows.continuous[:, 0] + (rows.codes[:, 1] == 1) * 0.5 > 0.75).long()
    update = make_update(net, learning_rate=0.01)
    for _ in range(300):
        update(rows, y)
    net.eval()
    z = net.encode(rows)
    p, probabilities = net.predict(z)
    _, flipped = net.predict(net.encode_dense(net.soft(net.generate(p, z))))
    assert (probabilities.argmax(1) == y).float().mean() > 0.95
    assert (flipped.argmax(1) != probabilities.argmax(1)).float().mean() > 0.95


@pytest.mark.parametrize("seed", range(3))
def test_a_gated_generator_learns_to_flip_with_fewer_changes_than_a_plain_one(seed: int) -> None:
    rows = some_rows(512, seed=seed)
    y = (rows.continuous.sum(dim=1) > 1.0).long()
    changed = {}
    for kind in ("plain", "gated"):
        torch.manual_seed(100 + seed)
        net = CounterNet(LAYOUT, 2, [8, 4], [5], [30], dropout=0.0, generator_kind=kind)
        update = make_update(net, learning_rate=0.01, lambda_valid=2.0)
        for _ in range(300):
            update(rows, y)
        probabilities, counterfactual = net.eval()(rows)
        flipped = net.predict(net.encode(counterfactual))[1].argmax(1) != probabilities.argmax(1)
        assert (probabilities.argmax(1) == y).float().mean() > 0.95
        assert flipped.float().mean() > 0.95, kind
        differs = [counterfactual.continuous != rows.continuous, counterfactual.codes != rows.codes]
        changed[kind] = torch.cat(differs, dim=1).float().mean().item()
    assert changed["gated"] < 0.85 * changed["plain"]


def test_rules_in_the_graph_keep_what_may_not_change() -> None:
    rules = SoftRules(
        schema(
            a={"immutable": True},
            b={"direction": "increase", "bounds": (None, 0.9)},
            c={"ordered": True, "direction": "increase"},
            d={"immutable": True},
        ),
        LAYOUT,
    )
    rows = some_rows(200)
    rows.continuous[:, 1] *= 0.9  # a row outside its bounds is a reject and never comes here
    x = one_hot(rows)
    raw = 3 * torch.randn(200, LAYOUT.width, generator=torch.Generator().manual_seed(2))
    projected = rules.project(x, rows.codes, raw, make_net().soft(raw))
    assert torch.equal(projected[:, [0, 5, 6]], x[:, [0, 5, 6]])
    assert (projected[:, 1] >= x[:, 1]).all()
    assert (projected[:, 1] <= torch.tensor(0.9)).all()
    assert (projected[:, 1] == torch.tensor(0.9)).any(), "no row met the bound: the test shows nothing"
    torch.testing.assert_close(projected[:, 2:5].sum(1), torch.ones(200))
    for row, code in zip(projected[:, 2:5], rows.codes[:, 0], strict=True):
        assert (row[:code] == 0).all()


def test_stage_2_descends_l2_of_the_projected_counterfactual_and_l3_of_the_generators_own() -> None:
    net, rows = make_net(), some_rows()
    expected, x = copy.deepcopy(net), one_hot(rows)
    rules = SoftRules(schema(a={"immutable": True}, c={"immutable": True}), LAYOUT)
    update = TwoStageUpdate(net, Training(learning_rate=0.01, lambda_valid=1.0, lambda_prox=1.0), rules, None)
    validity, proximity = update._stage_2(rows, x, update.pace)

    with torch.no_grad():
        z = expected.encode_dense(x)
        p, y_hat = expected.predict(z)
        target = torch.where(y_hat[:, 1] > 0.5, 0.03, 0.97)
    x_prime = expected.soft(expected.generate(p, z))
    stays = torch.tensor([True, False, True, True, True, False, False])
    _, y_cf = expected.predict(expected.encode_dense(torch.where(stays, x, x_prime)))
    loss_2, loss_3 = ((target - y_cf[:, 1]) ** 2).mean(), ((x - x_prime) ** 2).mean()
    torch.testing.assert_close(validity / 64, loss_2)
    torch.testing.assert_close(proximity / 64, loss_3)
    plain_adam(expected.generator_parameters(), loss_2 + loss_3, 0.01, 0.5)
    for (name, mine), theirs in zip(net.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, msg=lambda text, name=name: f"{name}: {text}", atol=2e-5, rtol=1e-4)


def test_rules_let_the_gradient_through_what_may_change_only() -> None:
    rules = SoftRules(schema(a={"immutable": True}, d={"immutable": True}), LAYOUT)
    rows = some_rows(8)
    x_prime = torch.rand(8, LAYOUT.width, requires_grad=True)
    rules.project(one_hot(rows), rows.codes, torch.zeros(8, LAYOUT.width), x_prime).sum().backward()
    assert x_prime.grad is not None
    assert (x_prime.grad[:, [0, 5, 6]] == 0).all()
    assert (x_prime.grad[:, 1:5] == 1).all()


@pytest.mark.parametrize("update", ["two_stage", "single"])
def test_seconds_of_both_stages_are_in_the_step(update: str) -> None:
    step = make_update(make_net(), update=update)
    started = time.perf_counter()
    losses = step(some_rows(), labels())
    taken = time.perf_counter() - started
    assert 0 < losses.seconds_stage_1 < taken
    assert (losses.seconds_stage_2 > 0) == (update == "two_stage")
    assert losses.seconds_stage_1 + losses.seconds_stage_2 < taken
