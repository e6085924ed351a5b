"""Where workers on other machines tell how far they are, and the driver reads it."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray.exceptions
from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_list,
    _internal_kv_put,
)

_POLL_S = 0.3
_NAMESPACE = "ray_cfnet"


@dataclass(frozen=True)
class Board:
    """Messages of one run in the cluster's own key-value store, until the driver takes them.

    Not in an actor: that is a process more, which wakes a hundred times a second on cores that train.
    """

    run: str

    def put(self, message: dict[str, Any]) -> None:
        """One process at a time may tell. Progress is a courtesy: that it cannot be told must not end a run."""
        with contextlib.suppress(ray.exceptions.RayError):
            _internal_kv_put(f"{self._prefix}{time.time_ns():020}", json.dumps(message), namespace=_NAMESPACE)

    def take(self) -> list[dict[str, Any]]:
        """What was told since the last time, in its order."""
        messages = []
        for key in sorted(_internal_kv_list(self._prefix, namespace=_NAMESPACE)):
            messages.append(json.loads(_internal_kv_get(key, namespace=_NAMESPACE)))
            _internal_kv_del(key, namespace=_NAMESPACE)
        return messages

    def clear(self) -> None:
        _internal_kv_del(self._prefix, del_by_prefix=True, namespace=_NAMESPACE)

    @property
    def _prefix(self) -> str:
        return f"{self.run}/"


@contextmanager
def board(run: str, on_message: Callable[[dict[str, Any]], None]) -> Iterator[Board]:
    """A board for the workers of a run; each message reaches `on_message` on the driver."""
    board = Board(run)
    board.clear()  # of a driver that was killed
    done = threading.Event()

    def poll() -> None:
        while True:
            last = done.wait(_POLL_S)
            try:
                messages = board.take()
            except ray.exceptions.RayError:
                messages = []
            for message in messages:
                on_message(message)
            if last:
                return

    thread = threading.Thread(target=poll, name="progress", daemon=True)
    thread.start()
    try:
        yield board
    finally:
        done.set()
        thread.join()
