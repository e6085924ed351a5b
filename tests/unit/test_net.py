"""The network against a plain one-hot computation written out here."""

import pytest
import torch
from torch import nn

from ray_cfnet.model.net import CounterNet, Layout, MixedLinear, Rows

LAYOUT = Layout(num_continuous=2, category_sizes=(3, 2))


def some_rows(num_rows: int = 64, seed: int = 0) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    codes = [torch.randint(size, (num_rows,), generator=generator) for size in LAYOUT.category_sizes]
    return Rows(torch.rand(num_rows, 2, generator=generator), torch.stack(codes, dim=1))


def one_hot(rows: Rows) -> torch.Tensor:
    blocks = [nn.functional.one_hot(rows.codes[:, k], size).float() for k, size in enumerate(LAYOUT.category_sizes)]
    return torch.cat([rows.continuous, *blocks], dim=1)


def make_net(num_classes: int = 2, dropout: float = 0.0, **switches: str) -> CounterNet:
    torch.manual_seed(1)
    return CounterNet(LAYOUT, num_classes, [8, 4], [5], [6], dropout, **switches)


def test_dense_rows_are_the_one_hot_matrix() -> None:
    rows = some_rows()
    assert torch.equal(LAYOUT.dense(rows), one_hot(rows))


def test_gather_equals_product_with_the_one_hot_matrix() -> None:
    layer, rows = MixedLinear(LAYOUT, 5), some_rows()
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    expected = one_hot(rows) @ layer.weight + layer.bias
    torch.testing.assert_close(layer(rows), expected)
    torch.testing.assert_close(layer.dense(one_hot(rows)), expected)


def test_layers_without_continuous_or_without_categorical_columns_work() -> None:
    only_numbers = MixedLinear(Layout(2, ()), 3)
    assert only_numbers(Rows(torch.rand(4, 2), torch.empty(4, 0, dtype=torch.int64))).shape == (4, 3)
    only_categories = MixedLinear(Layout(0, (3,)), 3)
    assert only_categories(Rows(torch.empty(4, 0), torch.zeros(4, 1, dtype=torch.int64))).shape == (4, 3)


def test_forward_is_the_papers_architecture_written_out() -> None:
    net, rows = make_net(num_classes=3).eval(), some_rows()
    weights = dict(net.state_dict())
    leaky = nn.functional.leaky_relu
    x = one_hot(rows)
    z = leaky(x @ weights["encoder_in.weight"] + weights["encoder_in.bias"])
    z = leaky(z @ weights["encoder.0.weight"].T + weights["encoder.0.bias"])
    p = leaky(z @ weights["predictor.0.weight"].T + weights["predictor.0.bias"])
    probabilities = torch.softmax(p @ weights["classifier.weight"].T + weights["classifier.bias"], dim=1)
    hidden = leaky(torch.cat([p, z], dim=1) @ weights["generator.0.weight"].T + weights["generator.0.bias"])
    raw = hidden @ weights["generator_out.weight"].T + weights["generator_out.bias"]

    predicted, cf = net(rows)
    torch.testing.assert_close(predicted, probabilities)
    torch.testing.assert_close(cf.continuous, torch.sigmoid(raw[:, :2]))
    assert torch.equal(cf.codes, torch.stack([raw[:, 2:5].argmax(1), raw[:, 5:7].argmax(1)], dim=1))


def test_soft_counterfactual_is_a_probability_in_every_block_and_lets_the_gradient_through() -> None:
    net = make_net()
    raw = torch.randn(16, LAYOUT.width, requires_grad=True)
    soft = net.soft(raw)
    assert ((soft >= 0) & (soft <= 1)).all()
    torch.testing.assert_close(soft[:, 2:5].sum(1), torch.ones(16))
    torch.testing.assert_close(soft[:, 5:7].sum(1), torch.ones(16))
    (soft[:, 2] ** 2).sum().backward()
    assert raw.grad is not None
    assert (raw.grad[:, 2:5] != 0).all()
    assert (raw.grad[:, 5:] == 0).all()


def test_dropout_acts_after_every_hidden_layer_in_training_only() -> None:
    net, rows = make_net(dropout=0.5), some_rows()
    assert sum(isinstance(module, nn.Dropout) for module in net.modules()) == 4  # two encoder, predictor, generator
    net.train()
    assert not torch.equal(net.encode(rows), net.encode(rows))
    net.eval()
    assert torch.equal(net.encode(rows), net.encode(rows))


def test_weights_start_with_he_variance_and_zero_bias() -> None:
    torch.manual_seed(0)
    net = CounterNet(Layout(40, (60,)), 2, [400, 300], [200], [250], 0.3)
    gain = 2 / (1 + 0.01**2)
    for name, weight in net.named_parameters():
        if name.endswith("bias"):
            assert (weight == 0).all()
            continue
        fan_in = weight.shape[0] if name == "encoder_in.weight" else weight.shape[1]
        assert abs(weight.var().item() / (gain / fan_in) - 1) < 0.15, name


def test_generator_and_prediction_weights_are_all_weights_and_do_not_overlap() -> None:
    net = make_net()
    prediction = {id(weight) for weight in net.prediction_parameters()}
    generator = {id(weight) for weight in net.generator_parameters()}
    assert not prediction & generator
    assert prediction | generator == {id(weight) for weight in net.parameters()}


def test_a_gated_generator_sees_the_row_and_which_class_is_predicted() -> None:
    """Written out; p alone says little at the border between two classes, where the way to the other turns round."""
    net, rows = make_net(num_classes=3, generator_kind="gated"), some_rows()
    for weight in net.generator_parameters():
        nn.init.normal_(weight)
    with torch.no_grad():
        z = net.encode(rows)
        net.classifier.bias -= net.classifier(net.predict(z)[0]).mean(dim=0)  # so that several classes are predicted
        p, probabilities = net.predict(z)
        weights = net.state_dict()
        hidden = torch.cat([p, z], dim=1) @ weights["generator.0.weight"].T + weights["generator.0.bias"]
        hidden += one_hot(rows) @ weights["generator_skip.weight"] + weights["generator_skip.bias"]
        assert len(probabilities.argmax(dim=1).unique()) > 1
        hidden += torch.stack([weights["generator_class.weight"][row.argmax()] for row in probabilities])
        hidden = torch.where(hidden > 0, hidden, 0.01 * hidden)
        expected = hidden @ weights["generator_out.weight"].T + weights["generator_out.bias"]
        torch.testing.assert_close(net.generate(p, z, rows), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("switches", [{"separate": True}, {"pass_prediction": False}], ids=str)
def test_a_gated_generator_that_may_not_see_p_is_not_told_the_class(switches: dict) -> None:
    assert make_net(generator_kind="gated", **switches).generator_class is None
