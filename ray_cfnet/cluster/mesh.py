"""A connection from every worker to every other one, over which small messages travel without a thread of their own."""

import hmac
import secrets
import socket

import torch.distributed as dist

MOST_BYTES = 128 * 1024
"""Of a message: two fit into the kernel's buffers. So a worker waits only for others that are behind it in the common
order of sending and receiving, never in a circle."""

_BUFFER_BYTES = 4 * MOST_BYTES
"""Linux gives 416 KiB of it by default, which it also keeps its own books in."""
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
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)

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
                    received = one.recv_into(place)
                except OSError as error:
                    raise _gone(rank) from error
                if not received:
                    raise _gone(rank)
                place = place[received:]


def _gone(rank: int) -> ConnectionError:
    return ConnectionError(f"training worker {rank} is gone")


def _guest(visitor: socket.socket, secret: bytes) -> int | None:
    """The rank of a worker that knows our secret."""
    visitor.settimeout(_GREETING_TIMEOUT_S)
    greeting = b""
    while len(greeting) < _SECRET_BYTES + _RANK_BYTES:
        try:
            part = visitor.recv(_SECRET_BYTES + _RANK_BYTES - len(greeting))
        except OSError:
            return None
        if not part:
            return None
        greeting += part
    known = hmac.compare_digest(greeting[:_SECRET_BYTES], secret)
    return int.from_bytes(greeting[_SECRET_BYTES:]) if known else None
