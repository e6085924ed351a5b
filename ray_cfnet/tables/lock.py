"""One at a time: a lock on a directory that processes on one or on many machines respect.

Local: flock on a hidden file, which the kernel gives back when its holder dies. S3, where pyarrow offers no
conditional write: announce yourself with an object, then look; whoever sees nobody else holds the lock. Of two
who announce at once each sees the other, so never both hold it, provided that a listing shows every object
written before it (Amazon S3, MinIO and others promise that). A holder killed on S3 leaves its object behind;
the error that follows names it.
"""

import fcntl
import getpass
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from ray_cfnet.errors import JobError
from ray_cfnet.tables.storage import Location

_LOOK_EVERY_S = 0.05


@contextmanager
def exclusive(directory: Location, patience_s: float = 60.0) -> Iterator[None]:
    """Runs the block while nobody else is in one for `directory`. Raises JobError when patience ends first."""
    with (_flocked if directory.is_local else _announced)(directory, patience_s):
        yield


def who() -> str:
    """The person or service account at work, and the machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user id without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def _flocked(directory: Location, patience_s: float) -> Iterator[None]:
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
                if time.monotonic() > give_up:
                    raise JobError(f"{file}: held by another process for {patience_s:g} s; try again") from None
            except OSError as error:
                raise JobError(f"{file}: this file system has no locks ({error}); use another one") from error
            time.sleep(_LOOK_EVERY_S)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _announced(directory: Location, patience_s: float) -> Iterator[None]:
    give_up = time.monotonic() + patience_s
    announcements = directory / ".locks"
    name = f"{time.time_ns():020d}-{uuid.uuid4().hex}"
    announced = False
    try:
        while True:
            others = [file.path for file in announcements.files() if file.path != name]
            if announced and not others:
                break
            if not announced and not others:
                announced = True
                (announcements / name).write_bytes(json.dumps({"by": who(), "at": now()}).encode())
                continue
            if announced and min(others) < name:  # the one who came first stays, the others step back
                (announcements / name).delete()
                announced = False
            if time.monotonic() > give_up:
                raise JobError(_held(announcements / min(others), patience_s))
            time.sleep(_LOOK_EVERY_S)
        yield
    finally:
        if announced:
            (announcements / name).delete()


def _held(place: Location, patience_s: float) -> str:
    holder = "someone"
    with suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(place.read_bytes())
        holder = f"{content['by']} since {content['at']}"
    return f"{place}: held by {holder}, waited {patience_s:g} s; if that process is dead, delete this object"
