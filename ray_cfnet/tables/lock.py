"""One at a time: a lock on a directory that processes on one or on many machines respect.

Local: flock on a hidden file, which the kernel gives back when its holder dies. S3, where pyarrow offers no
conditional write: announce yourself with an object, then look; whoever sees nobody else holds the lock. Of two
who announce at once each sees the other, so never both hold it, provided that a listing shows every object
written before it (Amazon S3, MinIO and others promise that).

A holder on S3 writes its object anew every few seconds. One that shows no sign of life for `STALE_S` is dead and
its object is removed; a holder that was held up for half as long no longer trusts its lock and says so in `check`.
"""

import fcntl
import getpass
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from ray_cfnet.errors import JobError, RayCfnetError
from ray_cfnet.tables.storage import Location

BEAT_S = 5.0
STALE_S = 60.0
_LOOK_EVERY_S = 0.05
_LOOK_AT_S3_EVERY_S = 0.5
_LOOKS = 5


class Hold:
    """A lock in one's hand."""

    def check(self) -> None:
        """Raises JobError if somebody else may have the lock by now."""


@contextmanager
def exclusive(directory: Location, what: str, patience_s: float = 60.0) -> Iterator[Hold]:
    """Runs the block while nobody else is in one for `directory`.

    `what` is told to whoever waits. Raises JobError with the holder's name when patience ends first; a holder on S3
    that may be dead is watched until that is clear.
    """
    with (_flocked if directory.is_local else _announced)(directory, what, patience_s) as hold:
        yield hold


def who() -> str:
    """The person or service account at work, and the machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user id without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _card(what: str) -> bytes:
    """What a holder leaves for others to read."""
    return json.dumps({"by": who(), "pid": os.getpid(), "at": now(), "what": what}).encode()


def _told(card: bytes) -> str:
    try:
        content = json.loads(card)
        return f"{content['what']} of {content['by']} (process {content['pid']}) since {content['at']}"
    except (ValueError, KeyError, TypeError):
        return "someone"


@contextmanager
def _flocked(directory: Location, what: str, patience_s: float) -> Iterator[Hold]:
    give_up = time.monotonic() + patience_s
    file = (directory / ".lock").path
    try:
        os.makedirs(directory.path, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise JobError(f"{directory}: cannot be written ({error}); check the access there") from error
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= give_up:
                    holder = _told(os.pread(descriptor, 4096, 0))
                    raise JobError(f"{file}: held by {holder}; wait for its end and try again") from None
            except OSError as error:
                raise JobError(f"{file}: this file system has no locks ({error}); use another one") from error
            time.sleep(_LOOK_EVERY_S)
        with suppress(OSError):  # a full disk must not keep a run from saying what it needs
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _card(what), 0)
        yield Hold()
    finally:
        os.close(descriptor)


@contextmanager
def _announced(directory: Location, what: str, patience_s: float) -> Iterator[Hold]:
    give_up = time.monotonic() + patience_s
    announcements = directory / ".locks"
    mine = announcements / f"{time.time_ns():020d}-{uuid.uuid4().hex}"
    card = _card(what)
    signs = _SignsOfLife()
    announced = False
    try:
        while True:
            at = time.monotonic()  # before the listing: what it shows is at least as old as its answer
            others = {file.path: file.modified_ns for file in announcements.files() if file.path != mine.name}
            for dead in signs.dead(others, at):
                (announcements / dead).delete()
                del others[dead]
            if announced and not others:
                break
            if not announced and not others:
                announced = True
                mine.write_bytes(card)
                continue
            if announced and min(others) < mine.name:  # the one who came first stays, the others step back
                mine.delete()
                announced = False
            first = min(others)
            if time.monotonic() >= give_up and signs.alive(first):
                raise JobError(f"{announcements / first}: {_held(announcements / first)}")
            time.sleep(_LOOK_AT_S3_EVERY_S)
        with _BeatingHold(mine, card) as hold:
            yield hold
    finally:
        if announced:
            mine.delete()


def _held(place: Location) -> str:
    card = b""
    with suppress(OSError):
        card = place.read_bytes()
    return f"held by {_told(card)}; wait for its end and try again"


class _SignsOfLife:
    """Which announcements change while we watch, by our own clock."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}
        self._looks: dict[str, int] = {}
        self._changed: set[str] = set()

    def dead(self, others: dict[str, int], at: float) -> list[str]:
        """Takes note of what a listing of that time shows and names those that have not changed for too long.

        One slow listing proves nothing: there must have been several looks.
        """
        for name, modified in others.items():
            if name in self._seen and self._seen[name][0] != modified:
                self._changed.add(name)
            if name not in self._seen or self._seen[name][0] != modified:
                self._seen[name], self._looks[name] = (modified, at), 0
            self._looks[name] += 1
        return [name for name in others if at - self._seen[name][1] > STALE_S and self._looks[name] > _LOOKS]

    def alive(self, name: str) -> bool:
        return name in self._changed


class _BeatingHold(Hold):
    """Writes its object anew now and then, until it is closed or was held up for too long."""

    def __init__(self, place: Location, card: bytes) -> None:
        self._place = place
        self._card = card
        self._last_beat = time.monotonic()
        self._gone = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> "_BeatingHold":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def check(self) -> None:
        if self._gone or self._late() or not self._place.exists():
            raise JobError(f"{self._place}: this run was held up for too long and lost its lock; start it again")

    def _late(self) -> bool:
        """Another may have the lock by now: writing would look like life."""
        return time.monotonic() - self._last_beat > STALE_S / 2

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_S):
            with suppress(RayCfnetError, OSError):
                if self._late() or not self._place.exists():
                    self._gone = True
                    return
                started = time.monotonic()
                self._place.write_bytes(self._card)
                if self._late():  # the write itself took so long: it may have brought back what another removed
                    self._gone = True
                    self._place.delete()
                    return
                self._last_beat = started
