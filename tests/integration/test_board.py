"""How workers tell the driver how far they are."""

import threading
from typing import Any

import pytest
import ray

from ray_cfnet.cluster import board as board_module
from ray_cfnet.cluster.board import Board, board


@ray.remote(num_cpus=0)
def tell(where: Board, messages: list[dict[str, Any]]) -> None:
    for message in messages:
        where.put(message)


def test_what_another_process_tells_arrives_once_and_in_its_order() -> None:
    told = [{"epoch": epoch, "loss": epoch / 3, "name": "ä"} for epoch in range(20)]
    heard: list[dict[str, Any]] = []
    with board("a run", heard.append) as where:
        ray.get(tell.remote(where, told))
    assert heard == told
    assert where.take() == []


def test_messages_are_heard_while_the_run_goes_on() -> None:
    heard = threading.Event()
    with board("a run", lambda _: heard.set()) as where:
        where.put({"epoch": 1})
        assert heard.wait(10)


def test_two_runs_do_not_hear_each_other_whatever_their_names() -> None:
    first, second = Board("a"), Board("ab")
    second.put({"run": 2})
    first.put({"run": 1})
    assert first.take() == [{"run": 1}]
    first.clear()
    assert second.take() == [{"run": 2}]


def test_what_a_killed_driver_left_unread_is_not_told_by_its_successor() -> None:
    Board("a run").put({"epoch": 7})
    heard: list[dict[str, Any]] = []
    with board("a run", heard.append) as where:
        where.put({"epoch": 8})
    assert heard == [{"epoch": 8}]


def test_progress_that_cannot_be_told_or_heard_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise ray.exceptions.RpcError("the cluster's store does not answer")

    heard: list[dict[str, Any]] = []
    with board("a run", heard.append) as where:
        with monkeypatch.context() as away:
            away.setattr(board_module, "_internal_kv_put", unreachable)
            away.setattr(board_module, "_internal_kv_list", unreachable)
            where.put({"epoch": 1})
            threading.Event().wait(3 * board_module._POLL_S)
        where.put({"epoch": 2})
    assert heard == [{"epoch": 2}]
