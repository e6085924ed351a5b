"""Two workers against one: real processes, their own connections or real gloo, no Ray.

In doubles: Adam divides by the gradient's own size, which blows float32 rounding of near-zero gradients up.
"""

import copy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from ray_cfnet.cluster import averaging
from ray_cfnet.cluster.loop import standing, stops_early
from ray_cfnet.cluster.mesh import MOST_BYTES
from ray_cfnet.config import Training
from ray_cfnet.model.descent import Average
from ray_cfnet.model.net import CounterNet, Rows
from ray_cfnet.model.rules import SoftRules
from ray_cfnet.model.step import TwoStageUpdate
from tests.unit.test_net import LAYOUT, make_net, some_rows
from tests.unit.test_step import schema

STEPS, BATCH = 20, 128


def batch(step: int) -> tuple[Rows, torch.Tensor]:
    rows = some_rows(BATCH, seed=step)
    rows = Rows(rows.continuous.double(), rows.codes)
    return rows, (rows.continuous[:, 0] > 0.5).long()


def train(net: CounterNet, settings: dict, mine: slice, average: Average | None = None) -> torch.Tensor:
    """The sums of the three losses and of the rows over all steps."""
    training = Training.model_validate({"learning_rate": 0.01, **settings})
    update = TwoStageUpdate(net, training, SoftRules(schema(), LAYOUT), None, average)
    told = []
    for step in range(STEPS):
        update.set_progress(step / STEPS)
        rows, y = batch(step)
        told.append(update(rows.take(mine), y[mine]))
    told.append(update.finish())
    return torch.tensor([[one.prediction, one.validity, one.proximity, one.num_rows] for one in told]).sum(dim=0)


def work(rank: int, cut: int, most_bytes: int, settings: dict, directory: str) -> None:
    """One of two workers: rows before `cut` of every batch, or the rest."""
    averaging.MOST_BYTES = most_bytes
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=2)
    net = make_net(dropout=0.0).double()
    mine = slice(0, cut) if rank == 0 else slice(cut, None)
    average = averaging.averaging(torch.device("cpu"), "127.0.0.1")
    sums = train(net, settings, mine, average)
    torch.save({"sums": sums, **net.state_dict()}, f"{directory}/worker-{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("cut", "most_bytes", "settings"),
    [
        (64, MOST_BYTES, {}),
        (100, MOST_BYTES, {"schedule": "constant"}),
        (0, MOST_BYTES, {}),
        (100, 0, {}),
        (100, 1000, {}),
        (64, MOST_BYTES, {"update": "posthoc"}),
        (64, MOST_BYTES, {"update": "single"}),
        (64, MOST_BYTES, {"freeze": False}),
    ],
    ids=str,
)
def test_two_workers_give_weights_and_losses_of_one_with_the_whole_batch(
    cut: int, most_bytes: int, settings: dict, tmp_path: Path
) -> None:
    mp.spawn(work, args=(cut, most_bytes, settings, str(tmp_path)), nprocs=2)
    alone = make_net(dropout=0.0).double()
    start = copy.deepcopy(alone.state_dict())
    expected_sums = train(alone, settings, slice(None))
    assert expected_sums[-1] == STEPS * BATCH
    workers = [torch.load(tmp_path / f"worker-{rank}.pt", weights_only=True) for rank in (0, 1)]
    torch.testing.assert_close(workers[0]["sums"] + workers[1]["sums"], expected_sums)
    for weights in workers:
        for name, expected in alone.state_dict().items():
            assert not torch.equal(expected, start[name]), f"{name} did not move: the test shows nothing"
            torch.testing.assert_close(weights[name], expected, atol=1e-7, rtol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_training_stops_when_the_best_epoch_is_old() -> None:
    history = [{"score": score} for score in (1.0, 3.0, 2.0, 2.5)]
    assert not stops_early(history, None)
    assert not stops_early(history, 3)
    assert stops_early(history, 2)
    assert not stops_early([], 1)


def test_kept_is_the_latest_epoch_that_is_about_as_good_as_the_best() -> None:
    scores = (1.0, 3.0, 2.0, 2.98, 2.9, 3.01, 2.97, 2.0)
    history = [{"score": score} for score in scores]
    standings = [standing(history[:end], Training()) for end in range(1, len(history) + 1)]
    assert standings == [1, 2, 0, 4, 0, 6, 7, 0]
    close = [number for number, score in enumerate(scores, 1) if score >= max(scores) - 0.05]
    assert max(standings) == max(close) == 7


def test_posthoc_keeps_no_epoch_whose_generator_is_untrained() -> None:
    history = [{"score": score} for score in (9.0, 11.0, 10.0, 10.2, 10.1)]
    training = Training(update="posthoc", epochs=5)  # g begins in the middle of the third
    assert [standing(history[:end], training) for end in range(1, 6)] == [0, 0, 3, 4, 0]
