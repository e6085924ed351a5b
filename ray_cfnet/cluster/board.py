"""Where workers on other machines tell how far they are, and the driver reads it."""

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray.exceptions
from ray.experimental.internal_kv import internal_kv_get_gcs_client

_POLL_S = 0.3
_TIMEOUT_S = 2.0
_NAMESPACE = b"ray_cfnet"
_UNREACHABLE = (ray.exceptions.RayError, OSError, ValueError)
"""What the store's client raises. Progress is a courtesy: that it cannot be told or heard must not end a run."""


@dataclass(frozen=True)
class Board:
    """Messages to one driver in the cluster's own key-value store, until it takes them.

    Not in an actor: that is a process more, which wakes a hundred times a second on cores that train.
    """

    name: str

    def put(self, message: dict[str, Any]) -> None:
        """One process at a time may tell; it waits two seconds at most."""
        text = json.dumps(message).encode()
        with contextlib.suppress(*_UNREACHABLE):
            _store().internal_kv_put(self._prefix + b"%020d" % time.time_ns(), text, True, _NAMESPACE, _TIMEOUT_S)

    def take(self) -> Iterator[dict[str, Any]]:
        """What was told since the last time, in its order."""
        store = _store()
        for key in sorted(store.internal_kv_keys(self._prefix, _NAMESPACE, _TIMEOUT_S)):
            text = store.internal_kv_get(key, _NAMESPACE, _TIMEOUT_S)
            store.internal_kv_del(key, False, _NAMESPACE, _TIMEOUT_S)
            if text is not None:
                yield json.loads(text)

    @property
    def _prefix(self) -> bytes:
        return f"{self.name}/".encode()


@contextmanager
def board(on_message: Callable[[dict[str, Any]], None]) -> Iterator[Board]:
    """A board for workers (`board.put({...})`); each message reaches `on_message` on the driver."""
    board = Board(uuid.uuid4().hex)  # no other driver's, whatever it trains
    done = threading.Event()

    def poll() -> None:
        while True:
            last = done.wait(_POLL_S)
            messages = []
            with contextlib.suppress(*_UNREACHABLE):
                for message in board.take():
                    messages.append(message)  # noqa: PERF402  # those before one that fails have arrived
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


def _store() -> Any:
    """Ray's own client: its functions around it know no time limit, and wait for a store that is away for ever."""
    client = internal_kv_get_gcs_client()
    if client is None:
        raise ConnectionError("there is no connection to Ray")
    return client
