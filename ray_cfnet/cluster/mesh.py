"""A connection from every worker to every other one, over which small messages travel without a thread of their own."""

import contextlib
import hmac
import secrets
import socket
import struct
import sys
import time
from typing import NamedTuple

import torch.distributed as dist

MOST_BYTES = 128 * 1024
"""Of a message: two fit into the kernel's buffers. So a worker waits only for others that are behind it in the common
order of sending and receiving, never in a circle."""

_BUFFER_BYTES = 4 * MOST_BYTES
"""Linux gives 416 KiB of it by default, which it also keeps its own books in."""
_SECRET_BYTES, _RANK_BYTES = 16, 4
_TIMEOUT_S = 1800
"""As torch's own collectives: Ray ends a group one of whose workers is gone long before."""
_GREETING_TIMEOUT_S = 10.0
_BACKLOG = 128


class _Address(NamedTuple):
    """Where a worker's doors are, and the word that opens them."""

    host: str
    port: int
    name: bytes
    """Of the door for workers of the same host: a Unix socket, cheaper than TCP. Empty where there is none."""
    secret: bytes


class Mesh:
    """Connects all workers of torch's process group; each must make one, with an address that the others reach."""

    def __init__(self, host: str) -> None:
        rank, num_workers = dist.get_rank(), dist.get_world_size()
        self._sockets: dict[int, socket.socket] = {}
        with _far_door(host) as far, _near_door() as near:
            name = near.getsockname() if near.family == socket.AF_UNIX else b""
            own = _Address(host, far.getsockname()[1], name, secrets.token_bytes(_SECRET_BYTES))
            everyone = [own] * num_workers
            dist.all_gather_object(everyone, own)
            for other, address in enumerate(everyone[:rank]):
                self._sockets[other] = _connection(own, address)
                self._sockets[other].sendall(address.secret + rank.to_bytes(_RANK_BYTES))
            guests = everyone[rank + 1 :]
            num_near = sum(_is_near(own, address) for address in guests)
            for door, num_guests in ((near, num_near), (far, len(guests) - num_near)):
                self._welcome(door, num_guests, own.secret)
        for one in self._sockets.values():
            _limit_waiting(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            if one.family != socket.AF_UNIX:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _welcome(self, door: socket.socket, num_guests: int, secret: bytes) -> None:
        door.settimeout(_TIMEOUT_S)
        while num_guests:
            visitor, _ = door.accept()
            guest = _guest(visitor, secret)
            if guest is None:
                visitor.close()  # not one of us
            else:
                self._sockets[guest] = visitor
                num_guests -= 1

    def send(self, message: memoryview) -> None:
        """To everybody else; at most MOST_BYTES. Between two receipts no more than two may be sent."""
        for rank, one in self._sockets.items():
            try:
                one.sendall(message)
            except OSError as error:
                raise _gone(rank) from error

    def receive(self, places: list[memoryview]) -> None:
        """Everybody else's next message into the place of its rank."""
        for rank, one in self._sockets.items():
            place = places[rank].cast("B")
            while len(place):
                try:
                    received = one.recv_into(place, 0, socket.MSG_WAITALL)
                except OSError as error:
                    raise _gone(rank) from error
                if not received:
                    raise _gone(rank)
                place = place[received:]


def _limit_waiting(one: socket.socket) -> None:
    """By the kernel's own time limits, which cost nothing; Python's are a second call to the kernel each time."""
    one.settimeout(None)
    for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        one.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", _TIMEOUT_S, 0))


def _gone(rank: int) -> ConnectionError:
    return ConnectionError(f"training worker {rank} is gone")


def _far_door(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, backlog=_BACKLOG)


def _near_door() -> socket.socket:
    """A name of the kernel's choice that is in no file system: known wherever the host's address is this machine.

    Not every system has such names, or buffers for them: then nobody comes through this door.
    """
    if sys.platform == "linux":
        door = socket.socket(socket.AF_UNIX)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        if door.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= 3 * MOST_BYTES:  # only the sender's counts here
            with contextlib.suppress(OSError):
                door.bind("")
                door.listen(_BACKLOG)
                return door
        door.close()
    return socket.socket()


def _is_near(own: _Address, other: _Address) -> bool:
    return own.host == other.host and bool(own.name and other.name)


def _connection(own: _Address, other: _Address) -> socket.socket:
    if not _is_near(own, other):
        return socket.create_connection((other.host, other.port), timeout=_TIMEOUT_S)
    connection = socket.socket(socket.AF_UNIX)
    _limit_waiting(connection)  # with a time limit of Python's it would not wait in a queue at the door
    connection.connect(other.name)
    return connection


def _guest(visitor: socket.socket, secret: bytes) -> int | None:
    """The rank of a worker that knows our secret, and says it in time."""
    until = time.monotonic() + _GREETING_TIMEOUT_S
    greeting = b""
    while len(greeting) < _SECRET_BYTES + _RANK_BYTES:
        try:
            visitor.settimeout(max(until - time.monotonic(), 0.001))
            part = visitor.recv(_SECRET_BYTES + _RANK_BYTES - len(greeting))
        except OSError:
            return None
        if not part:
            return None
        greeting += part
    known = hmac.compare_digest(greeting[:_SECRET_BYTES], secret)
    return int.from_bytes(greeting[_SECRET_BYTES:]) if known else None
