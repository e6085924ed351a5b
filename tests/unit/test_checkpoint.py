"""Training state: what is saved is what goes on."""

from pathlib import Path

import torch

from ray_cfnet.cluster.checkpoint import load_history, load_state, load_weights, save_state
from tests.unit.test_net import make_net, some_rows
from tests.unit.test_step import labels, make_update


def test_a_restored_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    batches = [(some_rows(seed=seed), labels()) for seed in range(6)]
    update = make_update(make_net(dropout=0.0))
    for batch in batches[:3]:
        update(*batch)
    save_state(str(tmp_path), update, [{"epoch": 1, "score": 0.5}])
    for batch in batches[3:]:
        update(*batch)

    resumed = make_update(make_net(dropout=0.0))
    assert load_state(str(tmp_path), resumed) == [{"epoch": 1, "score": 0.5}]
    for batch in batches[3:]:
        resumed(*batch)
    for name, weight in update.net.state_dict().items():
        assert torch.equal(weight, resumed.net.state_dict()[name]), name


def test_weights_alone_make_the_same_predictions(tmp_path: Path) -> None:
    update = make_update(make_net())
    update(some_rows(), labels())
    save_state(str(tmp_path), update, [])
    net = make_net()
    load_weights(str(tmp_path), net)
    assert torch.equal(net.eval()(some_rows())[0], update.net.eval()(some_rows())[0])
    assert load_history(str(tmp_path)) == []
