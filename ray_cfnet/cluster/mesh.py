"""A connection from every worker to every other one, over which small messages travel without a thread of their own."""

import hmac
import secrets
import socket
from contextlib import suppress

import torch.distributed as dist

MOST_BYTES = 64 * 1024
"""Of a message: two of them fit into the kernel's buffers, so that sending never waits for the other's reading."""

_BUFFER_BYTES = 4 * MOST_BYTES
_SECRET_BYTES, _RANK_BYTES = 16, 4
_TIMEOUT_S = 1800.0
"""As torch's own collectives: Ray ends a group one of whose workers is gone long before."""
_GREETING_TIMEOUT_S = 10.0


class Mesh:
    """Connects all workers of torch's process group; each must make one, with an address that the others reach."""

    def __init__(self, host: str) -> None:
        rank, num_workers = dist.get_rank(), dist.get_world_size()
        secret = secrets.token_bytes(_SECRET_BYTES)
        self._sockets: dict[int, socket.socket] = {}
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, 0), family=family, backlog=num_workers) as door:
            doors: list[tuple[str, int, bytes]] = [(host, 0, secret)] * num_workers
            dist.all_gather_object(doors, (host, door.getsockname()[1], secret))
            for other, (address, port, password) in enumerate(doors[:rank]):
                self._sockets[other] = socket.create_connection((address, port), timeout=_TIMEOUT_S)
                self._sockets[other].sendall(password + rank.to_bytes(_RANK_BYTES))
            door.settimeout(_TIMEOUT_S)
            while len(self._sockets) < num_workers - 1:
                visitor, _ = door.accept()
                guest = _guest(visitor, secret)
                if guest is None:
                    visitor.close()  # not one of us
                else:
                    self._sockets[guest] = visitor
        for one in self._sockets.values():
            one.settimeout(_TIMEOUT_S)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                one.setsockopt(socket.SOL_SOCKET, buffer, _BUFFER_BYTES)

    def send(self, message: memoryview) -> None:
        """To everybody else; at most MOST_BYTES, and no third one before the first was received."""
        for one in self._sockets.values():
            one.sendall(message)

    def receive(self, places: list[memoryview]) -> None:
        """Everybody else's next message into the place of its rank."""
        for rank, one in self._sockets.items():
            place = places[rank].cast("B")
            while len(place):
                received = one.recv_into(place)
                if not received:
                    raise ConnectionError(f"training worker {rank} is gone")
                place = place[received:]


def _guest(visitor: socket.socket, secret: bytes) -> int | None:
    """The rank of a worker that knows our secret."""
    visitor.settimeout(_GREETING_TIMEOUT_S)
    greeting = b""
    with suppress(OSError):
        while len(greeting) < _SECRET_BYTES + _RANK_BYTES:
            part = visitor.recv(_SECRET_BYTES + _RANK_BYTES - len(greeting))
            if not part:
                return None
            greeting += part
    known = hmac.compare_digest(greeting[:_SECRET_BYTES], secret)
    return int.from_bytes(greeting[_SECRET_BYTES:]) if known else None
