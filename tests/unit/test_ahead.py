"""One item ahead, in a thread."""

import threading
from collections.abc import Iterator

import pytest

from ray_cfnet.tables.ahead import Ahead


def test_all_items_come_in_order() -> None:
    assert list(Ahead(iter(range(100)))) == list(range(100))
    assert list(Ahead(iter(()))) == []


def test_the_next_item_is_made_while_the_first_is_in_use() -> None:
    made = [threading.Event() for _ in range(3)]

    def items() -> Iterator[int]:
        for number, event in enumerate(made):
            event.set()
            yield number

    ahead = Ahead(items())
    assert next(iter(ahead)) == 0
    assert made[1].wait(5)
    ahead.close()


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    ahead = iter(Ahead(items()))
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="broken"):
        next(ahead)


def test_close_ends_the_thread_in_the_middle() -> None:
    ended = threading.Event()

    def items() -> Iterator[int]:
        try:
            yield from range(10**9)
        finally:
            ended.set()

    ahead = Ahead(items())
    assert next(iter(ahead)) == 0
    ahead.close()
    assert not ahead._thread.is_alive()
