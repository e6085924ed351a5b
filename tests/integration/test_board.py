"""How workers tell the driver how far they are."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import ray

from ray_cfnet.cluster import board as board_module
from ray_cfnet.cluster.board import Board, board

TOLD = [{"epoch": epoch, "loss": epoch / 3, "name": "ä"} for epoch in range(20)]


@ray.remote(num_cpus=0)
def tell(where: Board, messages: list[dict[str, Any]]) -> None:
    for message in messages:
        where.put(message)


def test_what_another_process_tells_arrives_once_and_in_its_order() -> None:
    heard: list[dict[str, Any]] = []
    with board(heard.append) as where:
        ray.get(tell.remote(where, TOLD))
    assert heard == TOLD
    assert list(where.take()) == []


def test_messages_are_heard_while_the_run_goes_on() -> None:
    heard = threading.Event()
    with board(lambda _: heard.set()) as where:
        where.put({"epoch": 1})
        assert heard.wait(10)


def test_two_runs_do_not_hear_each_other() -> None:
    first, second = [], []  # type: ignore[var-annotated]
    with board(first.append) as one, board(second.append) as other:
        assert one != other
        one.put({"run": 1})
        other.put({"run": 2})
    assert (first, second) == ([{"run": 1}], [{"run": 2}])
    short, long = Board("a"), Board("ab")
    long.put({"run": 2})
    assert list(short.take()) == []
    assert list(long.take()) == [{"run": 2}]


class FailsOnce:
    """The store's client, whose second `get` does not come back in time."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.gets = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def internal_kv_get(self, *arguments: Any) -> Any:
        self.gets += 1
        if self.gets == 2:
            raise ray.exceptions.RpcError("Deadline Exceeded")
        return self.client.internal_kv_get(*arguments)


def test_a_store_that_fails_between_two_messages_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[dict[str, Any]] = []
    failing = FailsOnce(board_module._store())
    monkeypatch.setattr(board_module, "_store", lambda: failing)
    with board(heard.append) as where:
        for message in TOLD:
            where.put(message)
        time.sleep(3 * board_module._POLL_S)
    assert failing.gets > 2
    assert heard == TOLD


def test_progress_that_cannot_be_told_or_heard_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[dict[str, Any]] = []
    with board(heard.append) as where:
        with monkeypatch.context() as away:
            away.setattr(board_module, "internal_kv_get_gcs_client", lambda: None)
            where.put({"epoch": 1})
            time.sleep(3 * board_module._POLL_S)
        where.put({"epoch": 2})
    assert heard == [{"epoch": 2}]


@contextmanager
def silent_store() -> Iterator[None]:
    """The process of this Ray that holds the store does not answer."""
    store = ray._private.worker._global_node.all_processes["gcs_server"][0].process.pid
    os.kill(store, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(store, signal.SIGCONT)


def test_a_store_that_does_not_answer_holds_a_worker_up_for_seconds_only() -> None:
    heard: list[dict[str, Any]] = []
    with board(heard.append) as where:
        where.put({"epoch": 1})
        with silent_store():
            started = time.monotonic()
            where.put({"epoch": 2})
            waited = time.monotonic() - started
        where.put({"epoch": 3})
    assert 1 < waited < 10
    # The second may have reached the store after all.
    assert heard in ([{"epoch": 1}, {"epoch": 3}], [{"epoch": 1}, {"epoch": 2}, {"epoch": 3}])
