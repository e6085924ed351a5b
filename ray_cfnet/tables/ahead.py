"""The next item of an iterator is made while the current one is in use."""

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """Runs an iterator in a thread of its own, one item ahead. Its errors are raised where the items are used."""

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=1)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        while True:
            item, error = self._ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]

    def close(self) -> None:
        """Ends the thread; what it has made is lost."""
        self._closed.set()
        while self._thread.is_alive():
            with suppress(queue.Empty):
                self._ready.get(timeout=0.05)

    def _run(self) -> None:
        try:
            for item in self._items:
                if self._closed.is_set():
                    return
                self._ready.put((item, None))
            self._ready.put((None, StopIteration()))
        except BaseException as error:  # raised again where the items are used
            self._ready.put((None, error))
