"""The fast way through the network says what the network itself says."""

import pytest
import torch

from ray_cfnet.model.inference import Inference, likeliest
from ray_cfnet.model.net import CounterNet, Layout, Rows

LAYOUTS = {
    "mixed": Layout(3, (2, 5, 3)),
    "numbers": Layout(4, ()),
    "categories": Layout(0, (3, 2)),
    "one category": Layout(2, (1,)),
}


def random_rows(layout: Layout, num_rows: int) -> Rows:
    codes = [torch.randint(size, (num_rows,)) for size in layout.category_sizes]
    no_codes = torch.empty(0, num_rows, dtype=torch.int64)
    return Rows(torch.rand(num_rows, layout.num_continuous), (torch.stack(codes) if codes else no_codes).T)


@pytest.mark.parametrize(
    "switches",
    [{}, {"separate": True}, {"pass_prediction": False}, {"block": "conv"}, {"generator_kind": "gated"}],
    ids=str,
)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_inference_agrees_with_the_network(layout: Layout, switches: dict) -> None:
    torch.manual_seed(0)
    net = CounterNet(layout, 3, [8, 6], [5], [7], dropout=0.3, generator_dropout=0.2, **switches)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter)  # biases too
    inference, rows = Inference(net), random_rows(layout, 50)
    seen = inference.predict(rows)
    numbers, codes = inference.generate(rows, seen)
    with torch.no_grad():
        probabilities, counterfactual = net(rows)
    torch.testing.assert_close(seen.probabilities.T, probabilities, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(numbers.T, counterfactual.continuous, rtol=1e-4, atol=1e-5)
    assert [code.tolist() for code in codes] == counterfactual.codes.T.tolist()


@pytest.mark.parametrize("block", ["linear", "conv"])
@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("encoder", [[8], [8, 6], [8, 7, 6]], ids=str)
@pytest.mark.parametrize("num_rows", [0, 40])
def test_the_slope_is_the_gradient_of_the_lead(encoder: list[int], num_classes: int, block: str, num_rows: int) -> None:
    torch.manual_seed(1)
    net = CounterNet(LAYOUTS["mixed"], num_classes, encoder, [5], [7], dropout=0.3, block=block).double()
    inference, first = Inference(net), torch.randn(num_rows, encoder[0], dtype=torch.float64)
    desired, given = torch.randint(num_classes, (num_rows,)), first.clone().requires_grad_()
    logits = net.classifier(net.predictor(net.encoder(net.encoder_in_activation(given))).flatten(1))
    others = logits.masked_fill(torch.nn.functional.one_hot(desired, num_classes).bool(), -torch.inf).amax(dim=1)
    leads = logits.gather(1, desired[:, None])[:, 0] - others
    leads.sum().backward()
    found, slope = inference.slope(first, desired)
    torch.testing.assert_close(found, leads.detach())
    torch.testing.assert_close(slope, given.grad)


def test_column_major_rows_give_the_same_predictions() -> None:
    layout = LAYOUTS["mixed"]
    inference, rows = Inference(CounterNet(layout, 2, [8, 6], [5], [7], dropout=0.3)), random_rows(layout, 20)
    by_column = Rows(rows.continuous.T.contiguous().T, rows.codes.T.contiguous().T)
    by_row = Rows(rows.continuous.contiguous(), rows.codes.contiguous())
    expected = inference.predict(by_row).probabilities
    torch.testing.assert_close(inference.predict(by_column).probabilities, expected)


def test_inference_sees_weights_that_were_trained_further() -> None:
    layout = LAYOUTS["mixed"]
    net = CounterNet(layout, 2, [8, 6], [5], [7], dropout=0.3)
    inference, rows = Inference(net), random_rows(layout, 20)
    before = inference.predict(rows).probabilities
    with torch.no_grad():
        net.encoder_in.weight.add_(1.0)
    assert not torch.equal(inference.predict(rows).probabilities, before)


@pytest.mark.parametrize("num_labels", [1, 2, 5, 12, 300])
def test_the_likeliest_is_the_first_largest_score(num_labels: int) -> None:
    scores = torch.randint(-3, 3, (num_labels, 1000)).float()  # many ties
    assert likeliest(scores).tolist() == scores.numpy().argmax(0).tolist()


def test_the_likeliest_also_works_below_zero_at_the_ends_of_float_and_for_no_rows() -> None:
    scores = torch.tensor([[-3e38, -torch.inf, -1.0], [-2e38, -torch.inf, torch.inf]])
    assert likeliest(scores).tolist() == [1, 0, 1]
    assert likeliest(torch.empty(3, 0)).tolist() == []
