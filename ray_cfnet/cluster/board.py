"""Where workers on other machines tell how far they are, and the driver reads it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
import ray.actor
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_POLL_S = 0.3


@ray.remote(num_cpus=0)
class _Board:
    """Keeps messages until the driver takes them."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def put(self, message: dict[str, Any]) -> None:
        self.messages.append(message)

    def take(self) -> list[dict[str, Any]]:
        taken, self.messages = self.messages, []
        return taken


@contextmanager
def board(on_message: Callable[[dict[str, Any]], None]) -> Iterator[ray.actor.ActorHandle]:
    """A handle for workers (`handle.put.remote({...})`); each message reaches `on_message` on the driver."""
    # On the driver's own node: the loss of another must not silence it.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    handle = _Board.options(scheduling_strategy=here).remote()  # type: ignore[attr-defined]
    done = threading.Event()

    def poll() -> None:
        while True:
            last = done.wait(_POLL_S)
            try:
                messages = ray.get(handle.take.remote())
            except ray.exceptions.RayError:
                return  # progress is a courtesy: its loss must not end a run
            for message in messages:
                on_message(message)
            if last:
                return

    thread = threading.Thread(target=poll, name="progress", daemon=True)
    thread.start()
    try:
        yield handle
    finally:
        done.set()
        thread.join()
        ray.kill(handle)
