"""The paper's ablations, each against a computation written out here or a property that its switch alone gives."""

import copy
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from ray_cfnet import config
from ray_cfnet.cluster.checkpoint import load_state, save_state
from ray_cfnet.cluster.ingest import EncodeUnit, concatenated, from_arrow, labelled_rows
from ray_cfnet.cluster.shards import MemoryShard, StreamShard
from ray_cfnet.errors import InputError
from ray_cfnet.explain.evaluation import evaluated
from ray_cfnet.explain.explainer import Explainer, tensors
from ray_cfnet.model.bundle import Bundle, Settings, make_net
from ray_cfnet.model.net import CounterNet, MixedLinear, Rows
from ray_cfnet.model.robustness import StabilitySums
from ray_cfnet.model.rules import SoftRules
from ray_cfnet.model.step import TwoStageUpdate, cross_entropy
from ray_cfnet.tables.fit import TableStats, check_types, fit_schema
from ray_cfnet.tables.schema import TableSchema
from ray_cfnet.tables.storage import Location
from tests.unit.helpers import CONFIG, people, people_schema
from tests.unit.test_net import LAYOUT, one_hot, some_rows
from tests.unit.test_step import labels, make_update, plain_adam

EMPTY = Rows(torch.empty(0, 2), torch.empty(0, 2, dtype=torch.int64))


def net_with(dropout: float = 0.0, num_classes: int = 2, **switches: object) -> CounterNet:
    torch.manual_seed(1)
    return CounterNet(LAYOUT, num_classes, [8, 4], [5], [6], dropout, **switches)


def weights_of(net: CounterNet) -> dict[str, torch.Tensor]:
    return copy.deepcopy(net.state_dict())


def moved(net: CounterNet, before: dict[str, torch.Tensor]) -> set[str]:
    """Which of h, f and g have other weights than before; g's own encoder counts as g."""
    parts = {"encoder": "h", "encoder_in": "h", "predictor": "f", "classifier": "f"}
    changed = [name for name, weight in net.state_dict().items() if not torch.equal(weight, before[name])]
    return {parts.get(name.split(".")[0], "g") for name in changed}


def assert_same_weights(net: CounterNet, expected: CounterNet) -> None:
    for (name, mine), theirs in zip(net.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, msg=lambda text, name=name: f"{name}: {text}", atol=2e-5, rtol=1e-4)


def losses_written_out(net: CounterNet, y: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """L1, L2 (hard target, smoothed) and L3 of the paper as means, all in one graph."""
    z = net.encode_dense(x)
    p, y_hat = net.predict(z)
    x_prime = net.soft(net.generate(p, z))
    _, y_cf = net.predict(net.encode_dense(x_prime))
    target = torch.where(y_hat[:, 1] > 0.5, 0.03, 0.97)
    return ((y - y_hat[:, 1]) ** 2).mean(), ((target - y_cf[:, 1]) ** 2).mean(), ((x - x_prime) ** 2).mean()


def test_bce_is_the_binary_cross_entropy_for_two_classes() -> None:
    target, p = torch.tensor([0.0, 1.0, 0.3]), torch.tensor([0.2, 0.9, 0.4])
    found = cross_entropy(torch.stack([1 - target, target], dim=1), torch.stack([1 - p, p], dim=1))
    torch.testing.assert_close(found, nn.functional.binary_cross_entropy(p, target, reduction="sum"))


def test_bce_of_an_impossible_class_is_large_and_finite() -> None:
    p = torch.tensor([[1.0, 0.0]], requires_grad=True)
    loss = cross_entropy(torch.tensor([[0.0, 1.0]]), p).sum()
    loss.backward()
    assert 80 < loss.item() < math.inf
    assert p.grad is not None
    assert p.grad.isfinite().all()
    assert cross_entropy(torch.tensor([[1.0, 0.0]]), p).item() == 0


def test_bce_is_the_loss_of_both_stages() -> None:
    net, rows, y = net_with(num_classes=3), some_rows(), labels(num_classes=3)
    after_stage_1 = copy.deepcopy(net)
    losses = make_update(net, desired=2, loss="bce", learning_rate=0.01)(rows, y)

    _, y_hat = after_stage_1.predict(after_stage_1.encode(rows))
    loss_1 = nn.functional.nll_loss(y_hat.log(), y)
    torch.testing.assert_close(losses.prediction / 64, loss_1)
    plain_adam(after_stage_1.prediction_parameters(), loss_1, 0.01, 0.5)
    z = after_stage_1.encode(rows)
    p, _ = after_stage_1.predict(z)
    x_prime = after_stage_1.soft(after_stage_1.generate(p, z))
    logarithms = after_stage_1.predict(after_stage_1.encode_dense(x_prime))[1].log()
    loss_2 = -(0.02 * logarithms[:, 0] + 0.02 * logarithms[:, 1] + 0.96 * logarithms[:, 2]).mean()
    torch.testing.assert_close(losses.validity / 64, loss_2, atol=1e-4, rtol=1e-4)


def test_l1_proximity_is_the_mean_absolute_change_and_is_descended() -> None:
    net, rows = net_with(), some_rows()
    expected = copy.deepcopy(net)
    update = make_update(net, proximity_loss="l1", lambda_valid=0, lambda_prox=1, learning_rate=0.01)
    _, found = update._stage_2(rows, one_hot(rows), update.pace)

    x = one_hot(rows)
    z = expected.encode_dense(x)
    loss = (x - expected.soft(expected.generate(expected.predict(z)[0], z))).abs().mean()
    torch.testing.assert_close(found / 64, loss)
    plain_adam(expected.generator_parameters(), loss, 0.01, 0.5)
    assert_same_weights(net, expected)


def test_single_is_one_step_of_all_weights_on_the_three_losses() -> None:
    net, rows, y = net_with(), some_rows(), labels()
    expected = copy.deepcopy(net)
    losses = make_update(net, update="single", learning_rate=0.01)(rows, y)

    loss_1, loss_2, loss_3 = losses_written_out(expected, y, one_hot(rows))
    found = torch.stack([losses.prediction, losses.validity, losses.proximity]) / 64
    torch.testing.assert_close(found, torch.stack([loss_1, loss_2, loss_3]))
    everything = [*expected.prediction_parameters(), *expected.generator_parameters()]
    plain_adam(everything, loss_1 + 0.2 * loss_2 + 0.1 * loss_3, 0.01, 0.5)
    assert_same_weights(net, expected)


def test_a_soft_target_of_single_lets_the_gradient_through_the_prediction() -> None:
    net, rows, y = net_with(), some_rows(), labels()
    expected = copy.deepcopy(net)
    settings = {"lambda_pred": 1e-6, "lambda_valid": 1.0, "lambda_prox": 0.0, "learning_rate": 0.01, "grad_clip": 1e9}
    make_update(net, update="single", validity_target="soft", **settings)(rows, y)
    z = expected.encode(rows)
    p, y_hat = expected.predict(z)
    _, y_cf = expected.predict(expected.encode_dense(expected.soft(expected.generate(p, z))))
    loss = ((y_hat[:, 1] - (1 - y_cf[:, 1])) ** 2).mean() + 1e-6 * ((y - y_hat[:, 1]) ** 2).mean()
    plain_adam([*expected.prediction_parameters(), *expected.generator_parameters()], loss, 0.01, 1e9)
    assert_same_weights(net, expected)


def test_without_freeze_stage_2_descends_l2_and_l3_with_all_weights() -> None:
    net, rows = net_with(), some_rows()
    expected, before = copy.deepcopy(net), weights_of(net)
    update = make_update(net, freeze=False, learning_rate=0.01)
    update._stage_2(rows, one_hot(rows), update.pace)
    assert moved(net, before) == {"h", "f", "g"}

    _, loss_2, loss_3 = losses_written_out(expected, labels(), one_hot(rows))
    everything = [*expected.prediction_parameters(), *expected.generator_parameters()]
    plain_adam(everything, 0.2 * loss_2 + 0.1 * loss_3, 0.01, 0.5)
    assert_same_weights(net, expected)


def test_without_freeze_stage_1_still_leaves_the_generator() -> None:
    net = net_with()
    before = weights_of(net)
    make_update(net, freeze=False)._stage_1(some_rows(), one_hot(some_rows()), labels())
    assert moved(net, before) == {"h", "f"}


@pytest.mark.parametrize(("done", "parts"), [(0.0, {"h", "f"}), (0.49, {"h", "f"}), (0.5, {"g"}), (0.99, {"g"})])
def test_posthoc_moves_the_predictor_in_the_first_half_and_the_generator_in_the_second(
    done: float, parts: set[str]
) -> None:
    net = net_with(dropout=0.3)
    update = make_update(net, update="posthoc")
    update.set_progress(done)
    for seed in range(3):
        before = weights_of(net)
        losses = update(some_rows(seed=seed), labels())
        assert moved(net, before) == parts
        assert losses.prediction > 0  # all three are measured in both halves
        assert losses.validity > 0
        assert losses.proximity > 0


def test_each_half_of_posthoc_has_the_whole_schedule() -> None:
    update = make_update(net_with(), update="posthoc", learning_rate=1.0)
    rates = []
    for done in (0.0, 0.25, 0.5, 0.75):
        update.set_progress(done)
        rates.append(update.pace.rate)
    assert rates == pytest.approx([1.0, 0.505, 1.0, 0.505])


def test_posthoc_is_refused_where_h_and_f_would_move_or_g_never_come_to_its_turn() -> None:
    with pytest.raises(ValidationError, match="contradicts update: posthoc"):
        config.Training(update="posthoc", freeze=False)
    with pytest.raises(ValidationError, match="before its generator is trained"):
        config.Training(update="posthoc", patience=5)


@pytest.mark.parametrize("settings", [{"update": "single"}, {"update": "posthoc"}, {"freeze": False}], ids=str)
def test_a_restored_ablation_goes_on_bit_for_bit(settings: dict, tmp_path: Path) -> None:
    def go_on(update: TwoStageUpdate, seeds: range) -> None:
        for seed in seeds:
            update.set_progress(seed / 6)
            update(some_rows(seed=seed), labels())

    whole, resumed = make_update(net_with(), **settings), make_update(net_with(), **settings)
    go_on(whole, range(2))
    save_state(str(tmp_path), whole, [])
    go_on(whole, range(2, 6))
    load_state(str(tmp_path), resumed)
    go_on(resumed, range(2, 6))
    assert moved(whole.net, resumed.net.state_dict()) == set()


def test_without_the_prediction_the_generator_takes_z_alone() -> None:
    assert net_with().generator[0].in_features == 5 + 4
    net, rows = net_with(pass_prediction=False).eval(), some_rows()
    assert net.generator[0].in_features == 4
    z = net.encode(rows)
    raw = net.generate(net.predict(z)[0], z)
    torch.testing.assert_close(raw, net.generate(torch.randn(64, 5), z))
    torch.testing.assert_close(net(rows)[1].continuous, torch.sigmoid(raw[:, :2]))


def test_separate_shares_nothing_between_predictor_and_generator() -> None:
    net, rows = net_with(separate=True).eval(), some_rows()
    z = net.encode(rows)
    raw = net.generate(net.predict(z)[0], net.generator_latent(rows, z))
    used = torch.autograd.grad(raw.sum(), list(net.parameters()), allow_unused=True)
    reached = {name for (name, _), gradient in zip(net.named_parameters(), used, strict=True) if gradient is not None}
    assert reached == {name for name, _ in net.named_parameters() if name.startswith("generator")}
    assert not {id(w) for w in net.prediction_parameters()} & {id(w) for w in net.generator_parameters()}
    assert len(net.prediction_parameters()) + len(net.generator_parameters()) == len(list(net.parameters()))


def test_the_separate_generator_is_an_encoder_and_a_generator_written_out() -> None:
    net, rows = net_with(separate=True).eval(), some_rows()
    weights, leaky = net.state_dict(), nn.functional.leaky_relu
    hidden = leaky(one_hot(rows) @ weights["generator_encoder.0.weight"] + weights["generator_encoder.0.bias"])
    last = max(name for name in weights if name.startswith("generator_encoder.") and "weight" in name)
    hidden = leaky(hidden @ weights[last].T + weights[last.replace("weight", "bias")])
    hidden = leaky(hidden @ weights["generator.0.weight"].T + weights["generator.0.bias"])
    raw = hidden @ weights["generator_out.weight"].T + weights["generator_out.bias"]
    torch.testing.assert_close(net(rows)[1].continuous, torch.sigmoid(raw[:, :2]))


def test_stage_2_of_separate_trains_the_generators_encoder_with_its_dropout_and_no_bit_of_the_predictor() -> None:
    net = net_with(dropout=0.3, separate=True)
    before = weights_of(net)
    update = make_update(net)
    update._stage_2(some_rows(), one_hot(some_rows()), update.pace)
    assert moved(net, before) == {"g"}
    assert not torch.equal(net.generator_encoder[0].weight, before["generator_encoder.0.weight"])
    rest, of_generator = net._dropouts
    assert len(rest) == 3
    assert not any(dropout.training for dropout in rest)
    assert len(of_generator) == 3
    assert all(dropout.training for dropout in of_generator)


def test_l2_of_separate_without_freeze_reaches_the_predictor_through_the_counterfactual_only() -> None:
    """With f(x') out of the way nothing of L2 and L3 is left for h: z and p are not looked at."""
    for separate, expected in ((False, True), (True, False)):
        net, rows = net_with(separate=separate), some_rows()
        z = net.encode(rows)
        x_prime = net.soft(net.generate(net.predict(z)[0], net.generator_latent(rows, z)))
        [gradient] = torch.autograd.grad(x_prime.square().sum(), [net.encoder_in.weight], allow_unused=True)
        assert (gradient is not None) == expected


def test_conv_is_convolutions_over_the_units_of_the_first_layer_written_out() -> None:
    net, rows = net_with(block="conv").eval(), some_rows()
    weights, leaky, conv = net.state_dict(), nn.functional.leaky_relu, nn.functional.conv1d
    signal = leaky(one_hot(rows) @ weights["encoder_in.weight"] + weights["encoder_in.bias"])[:, None, :]
    z = leaky(conv(signal, weights["encoder.0.weight"], weights["encoder.0.bias"], padding=1))
    p = leaky(conv(z, weights["predictor.0.weight"], weights["predictor.0.bias"], padding=1))
    assert (z.shape, p.shape) == ((64, 4, 8), (64, 5, 8))
    y_hat = torch.softmax(p.reshape(64, 40) @ weights["classifier.weight"].T + weights["classifier.bias"], dim=1)
    seen = torch.cat([p, z], dim=1)
    hidden = leaky(conv(seen, weights["generator.0.weight"], weights["generator.0.bias"], padding=1))
    raw = hidden.reshape(64, 48) @ weights["generator_out.weight"].T + weights["generator_out.bias"]

    assert isinstance(net.encoder_in, MixedLinear)  # rows are predicted without a one-hot matrix
    probabilities, cf = net(rows)
    torch.testing.assert_close(probabilities, y_hat)
    torch.testing.assert_close(cf.continuous, torch.sigmoid(raw[:, :2]))
    torch.testing.assert_close(net.encode_dense(one_hot(rows)), net.encode(rows))


@pytest.mark.parametrize(
    "switches", [{"block": "conv"}, {"separate": True}, {"pass_prediction": False}, {"block": "conv", "separate": True}]
)
def test_other_networks_learn_to_predict_and_to_flip(switches: dict) -> None:
    net, rows = net_with(**switches), some_rows(512)
    y = (rows.continuous[:, 0] + (rows.codes[:, 1] == 1) * 0.5 > 0.75).long()
    update = make_update(net, learning_rate=0.01)
    for _ in range(300):
        update(rows, y)
    net.eval()
    z = net.encode(rows)
    p, probabilities = net.predict(z)
    x_prime = net.soft(net.generate(p, net.generator_latent(rows, z)))
    _, flipped = net.predict(net.encode_dense(x_prime))
    assert (probabilities.argmax(1) == y).float().mean() > 0.95
    assert (flipped.argmax(1) != probabilities.argmax(1)).float().mean() > 0.9


@pytest.mark.parametrize("switches", [{"block": "conv"}, {"separate": True}, {"pass_prediction": False}], ids=str)
def test_other_networks_can_be_attacked(switches: dict) -> None:
    sums = StabilitySums([0.0, 0.1, 1.0])
    sums.add(net_with(**switches).eval(), some_rows())
    assert sums.rows == 64
    assert sums.fgsm[-1] <= sums.fgsm[0] == 64


@pytest.mark.parametrize("settings", [{}, {"update": "single"}, {"update": "posthoc"}, {"freeze": False}], ids=str)
@pytest.mark.parametrize("switches", [{}, {"block": "conv"}, {"separate": True}], ids=str)
def test_an_empty_batch_moves_nothing_and_takes_part_in_every_collective(settings: dict, switches: dict) -> None:
    """Workers must meet in the same collectives, rows or not."""
    meetings: list[list[tuple[int, ...]]] = []
    for rows, y in ((EMPTY, torch.empty(0, dtype=torch.int64)), (some_rows(), labels())):
        net, met = net_with(**switches), []
        before = weights_of(net)

        def meet(gradient: torch.Tensor, _: int, met: list = met) -> Callable[[], None]:
            met.append(tuple(gradient.shape))
            return lambda: None

        update = make_update(net, average=meet, **settings)
        update(rows, y)
        update.finish()
        assert bool(moved(net, before)) == bool(len(rows))
        meetings.append(met)
    assert meetings[0] == meetings[1] != []


@pytest.mark.parametrize("switches", [{"block": "conv"}, {"separate": True}, {"pass_prediction": False}], ids=str)
def test_other_networks_are_saved_and_loaded(switches: dict, tmp_path: Path) -> None:
    whole = CONFIG.model_copy(update={"model": config.Model(encoder=[9, 5], predictor=[4], generator=[7], **switches)})
    schema = soft_schema(soft_people(50))
    bundle = Bundle(make_net(schema, whole.model).eval(), schema, Settings.of(whole), {})
    loaded = Bundle.load(bundle.save(Location.of(tmp_path)))
    assert loaded.settings.model == whole.model
    rows = tensors(labelled_rows(soft_people(50), schema).encoded, schema, torch.device("cpu"))
    assert torch.equal(loaded.net(rows)[0], bundle.net(rows)[0])


# Black-box mode: the target is another model's probability.

SOFT_TABLE = CONFIG.table.model_copy(update={"target": "score", "target_probability": True})


def soft_people(num_rows: int, seed: int = 0) -> pa.Table:
    """People with another model's probability of approval."""
    table = people(num_rows, seed)
    score = 1 / (1 + np.exp(-(table.column("income").to_numpy() - 50_000) / 10_000))
    return table.append_column("score", pa.array(score))


def soft_schema(table: pa.Table, max_reject_fraction: float = 0.0) -> TableSchema:
    stats = TableStats()
    stats.add(table, SOFT_TABLE, "people.parquet")
    check_types(SOFT_TABLE, table.schema, "people.parquet")
    return fit_schema(SOFT_TABLE, table.schema, stats, max_reject_fraction)


def with_scores(table: pa.Table, scores: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index("score"), "score", scores)


@pytest.mark.parametrize("arrow_type", [pa.float64(), pa.float32(), pa.float16()], ids=str)
def test_a_probability_target_has_the_classes_0_and_1(arrow_type: pa.DataType) -> None:
    table = soft_people(100)
    schema = soft_schema(with_scores(table, table.column("score").cast(arrow_type)))
    assert schema.target.is_probability
    assert schema.target.classes == (0, 1)
    assert TableSchema.from_json(schema.to_json()) == schema


def test_classes_are_no_probabilities() -> None:
    assert not people_schema().target.is_probability


def test_a_probability_target_of_another_type_is_refused_with_the_remedy() -> None:
    table = soft_people(10)
    with pytest.raises(InputError, match=r"target score is int64: table.target_probability needs a float"):
        soft_schema(with_scores(table, pa.array(range(10))))
    with pytest.raises(InputError, match=r"target score is double.*or set table.target_probability"):
        check_types(SOFT_TABLE.model_copy(update={"target_probability": False}), table.schema, "people.parquet")


@pytest.mark.parametrize(
    ("bad", "reason"), [(None, "null"), (math.nan, "nan"), (math.inf, "infinite"), (1.5, "out_of_domain")]
)
def test_a_value_that_is_no_probability_is_refused_or_left_out(bad: float | None, reason: str) -> None:
    table = soft_people(100)
    scores = table.column("score").to_pylist()
    table = with_scores(table, pa.array([bad, *scores[1:]], pa.float64()))
    with pytest.raises(InputError, match=rf"column score \(probabilities, 0 to 1\) has 1 x {reason} in 100 training"):
        soft_schema(table)
    rows = labelled_rows(table, soft_schema(table, max_reject_fraction=0.01))
    assert rows.labels.tolist() == [-1, *(int(score > 0.5) for score in scores[1:])]


def test_probabilities_on_one_side_only_are_a_single_class() -> None:
    table = soft_people(10)
    with pytest.raises(InputError, match=r"target score: a single class in the training split \(0: 0.1 to 0.4, cut"):
        soft_schema(with_scores(table, pa.array([0.1, 0.4] * 5)))


class _Reader:
    """A `SplitReader` of tables in memory."""

    def __init__(self, *tables: pa.Table) -> None:
        self.tables = tables

    def read(self, unit: object, columns: list[str]):
        return (("people.parquet", table.select(columns)) for table in self.tables)


def test_probabilities_reach_the_worker_and_bad_ones_do_not() -> None:
    table = soft_people(100)
    schema = soft_schema(table)
    scores = table.column("score").to_pylist()
    broken = with_scores(table, pa.array([2.0, None, *scores[2:]]))
    encoded = EncodeUnit(_Reader(table, broken), schema, [None])({"item": np.array([0])})
    rows = from_arrow(encoded, schema)
    assert rows.targets.tolist() == [*scores, *scores[2:]]
    assert rows.labels.tolist() == [int(score > 0.5) for score in rows.targets]
    nothing = from_arrow(EncodeUnit(_Reader(), schema, [None])({"item": np.array([0])}), schema)
    assert len(nothing) == len(nothing.targets) == 0


class _Iterator:
    """A `ray.data.DataIterator` over tables in memory."""

    def __init__(self, *tables: pa.Table) -> None:
        self.tables = tables

    def iter_batches(self, **_: object):
        return iter(self.tables)


@pytest.mark.parametrize("stream", [False, True])
def test_every_probability_stays_with_its_row_in_both_kinds_of_shard(stream: bool) -> None:
    table = soft_people(100)
    schema, device = soft_schema(table), torch.device("cpu")
    encoded = EncodeUnit(_Reader(table), schema, [None])({"item": np.array([0])})
    if stream:
        shard = StreamShard(_Iterator(encoded.slice(0, 37), encoded.slice(37)), schema, device)
    else:
        shard = MemoryShard(from_arrow(encoded, schema), schema, device)
    batches = list(shard.batches(16, torch.Generator().manual_seed(0)))
    income = torch.cat([rows.continuous[:, 1] for rows, _ in batches]).double()
    targets = torch.cat([target for _, target in batches])
    lower, span = schema.continuous[1].lower, schema.continuous[1].span
    torch.testing.assert_close(targets, torch.sigmoid((lower + income * span - 50_000) / 10_000), atol=1e-5, rtol=0)
    assert sorted(targets.tolist()) == sorted(table.column("score").to_pylist())


def test_rows_without_the_target_column_have_no_label() -> None:
    table = soft_people(20)
    rows = labelled_rows(table.drop_columns(["score"]), soft_schema(table))
    assert (rows.labels == -1).all()
    joined = concatenated([rows, rows], soft_schema(table))
    assert joined.probabilities is None
    assert len(joined) == 40


def test_l1_of_a_probability_is_its_squared_distance_to_the_prediction() -> None:
    net, rows = net_with(), some_rows()
    p = torch.rand(64, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    _, y_hat = net.predict(net.encode(rows))
    found = make_update(net)._stage_1(rows, one_hot(rows), p)
    torch.testing.assert_close(found / 64, ((p.float() - y_hat[:, 1]) ** 2).mean().detach())


def test_probabilities_of_0_and_1_train_like_classes() -> None:
    by_class, by_probability = net_with(), net_with()
    for seed in range(3):
        make_update(by_class)(some_rows(seed=seed), labels())
        make_update(by_probability)(some_rows(seed=seed), labels().double())
    for mine, theirs in zip(by_class.parameters(), by_probability.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_network_learns_another_models_probabilities_and_explains_with_integer_labels() -> None:
    table = soft_people(1000)
    schema = soft_schema(table)
    torch.manual_seed(0)
    whole = CONFIG.model_copy(update={"model": CONFIG.model.model_copy(update={"dropout": 0.0})})
    net = make_net(schema, whole.model)
    update = TwoStageUpdate(net, config.Training(learning_rate=0.01), SoftRules(schema, net.layout), None)
    rows = labelled_rows(table, schema)
    x, targets = tensors(rows.encoded, schema, torch.device("cpu")), torch.from_numpy(rows.targets)
    for _ in range(300):
        update(x, targets)
    net.eval()
    learned = net.predict(net.encode(x))[1][:, 1].detach().numpy()
    assert np.abs(learned - table.column("score").to_numpy()).mean() < 0.05

    explainer = Explainer(Bundle(net, schema, Settings.of(whole), {}), None)
    summary = evaluated(explainer, rows.encoded, rows.labels).summary()
    agreement = ((learned > 0.5) == (table.column("score").to_numpy() > 0.5)).mean()
    assert summary["accuracy"] == pytest.approx(agreement)
    assert agreement > 0.95
    for given in (table, table.drop_columns(["score"])):
        explained, rejected, _ = explainer.explain_table(given, "run")
        assert len(rejected) == 0
        assert explained.schema.field("pred_label").type == pa.int64()
        assert explained.column("pred_label").to_pylist() == (learned > 0.5).astype(int).tolist()
