"""SIGTERM, as a scheduler or `ray job stop` sends it, and SIGINT: end soon, and leave nothing half done."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ray_cfnet.cluster.submission import stop_grace_s
from ray_cfnet.errors import StoppedError
from ray_cfnet.tables.storage import Location

_LEAVING_S = 1.0
_sigterm_came = threading.Event()
"""Of the process, as signals are: blocks that are left one after the other must agree."""


@contextmanager
def told_on_sigterm() -> Iterator[None]:
    """SIGTERM leaves the block as a StoppedError, wherever it is: Ray's own handler goes without a word."""
    if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
        yield
        return
    _sigterm_came.clear()

    def leave(*_: object) -> None:
        if _sigterm_came.is_set() and sys.exception() is not None:
            return  # the block is being left, and what tidies up must not be left half way
        _sigterm_came.set()
        # Not an Exception, so that nothing on the way takes it for its own trouble; Ray's C++ makes a new one of it.
        raise SystemExit

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except SystemExit as error:
        if _sigterm_came.is_set() or error.code == signal.SIGTERM:  # with this Ray goes while it starts
            _sigterm_came.set()
            raise StoppedError("stopped by a signal; start it again: what was done stays done") from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def deaf_to_sigterm() -> Iterator[None]:
    """For a short last step: there is nothing more that a signal could keep from being begun."""
    if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT leaves the block as a KeyboardInterrupt: Ray Train's own would exit with 0, and stays there afterwards."""
    if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as error:
        if error.code == 0:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, before)


class NoTimeLeftError(BaseException):
    """Units are still at work, but Ray is about to kill this process.

    Not an Exception: Ray Data would print its stack and ask to report it.
    """


@contextmanager
def put_on_sigterm(stop_sign: Location) -> Iterator[threading.Event]:
    """SIGTERM lets actors finish the units they are at and begin no other.

    In a job of `ray job submit` they have as long as its stop leaves, less what giving back the lock takes: then
    NoTimeLeftError is raised.
    """
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
        yield stopped
        return

    before = {signal.SIGTERM: signal.getsignal(signal.SIGTERM)}

    def stop(*_: object) -> None:
        if not stopped.is_set() and (grace_s := stop_grace_s()) is not None:
            before[signal.SIGALRM] = signal.signal(signal.SIGALRM, give_up)
            signal.setitimer(signal.ITIMER_REAL, max(grace_s - _LEAVING_S, 0.1))
        stopped.set()
        stop_sign.write_bytes(b"stop\n")

    def give_up(*_: object) -> None:
        raise NoTimeLeftError

    signal.signal(signal.SIGTERM, stop)
    try:
        yield stopped
    finally:
        if signal.SIGALRM in before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
