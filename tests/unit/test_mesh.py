"""Workers' connections to each other: real processes, real sockets, no Ray."""

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from ray_cfnet.cluster import mesh as mesh_module
from ray_cfnet.cluster.mesh import MOST_BYTES, Mesh

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a second loopback address and nameless sockets")

ONE_HOST = ("127.0.0.1", "127.0.0.1", "127.0.0.1")
TWO_HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.1")


def joined(rank: int, hosts: tuple[str, ...], directory: str, work: Callable[[int, Mesh], None]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=rank, world_size=len(hosts))
    work(rank, Mesh(hosts[rank]))
    dist.barrier()
    dist.destroy_process_group()


def message(rank: int, number: int) -> bytes:
    return bytes([rank + 16 * number]) * MOST_BYTES


def exchange(rank: int, mesh: Mesh) -> None:
    """Two of the largest messages are on their way before anybody reads the first."""
    for one in mesh._sockets.values():
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > 2 * MOST_BYTES
    for number in (0, 1):
        mesh.send(memoryview(message(rank, number)))
    dist.barrier()
    for number in (0, 1):
        places = [bytearray(MOST_BYTES) for _ in range(dist.get_world_size())]
        mesh.receive([memoryview(place) for place in places])
        told = [bytes(place) for place in places]
        assert told == [bytes(MOST_BYTES) if other == rank else message(other, number) for other in range(3)]


def exchange_within_and_between_hosts(rank: int, mesh: Mesh) -> None:
    families = {other: one.family for other, one in mesh._sockets.items()}
    near, far = socket.AF_UNIX, socket.AF_INET
    assert families == [{1: far, 2: near}, {0: far, 2: far}, {0: near, 1: far}][rank]
    exchange(rank, mesh)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("hosts", "work"), [(ONE_HOST, exchange), (TWO_HOSTS, exchange_within_and_between_hosts)], ids=["one", "two"]
)
def test_everybody_gets_everybodys_messages_in_their_order(
    hosts: tuple[str, ...], work: Callable[[int, Mesh], None], tmp_path: Path
) -> None:
    mp.spawn(joined, args=(hosts, str(tmp_path), work), nprocs=3)


def leave(rank: int, mesh: Mesh) -> None:
    if rank == 0:
        for one in mesh._sockets.values():
            one.close()
    else:
        with pytest.raises(ConnectionError, match="worker 0 is gone"):
            mesh.receive([memoryview(bytearray(1)) for _ in range(2)])


def leave_unread(rank: int, mesh: Mesh) -> None:
    """Who leaves before having read everything resets the connection."""
    if rank == 1:
        mesh.send(memoryview(b"x"))
    dist.barrier()
    if rank == 0:
        for one in mesh._sockets.values():
            one.close()
    dist.barrier()
    if rank == 1:
        with pytest.raises(ConnectionError, match="worker 0 is gone"):
            mesh.receive([memoryview(bytearray(1)) for _ in range(2)])
        with pytest.raises(ConnectionError, match="worker 0 is gone"):
            mesh.send(memoryview(b"x"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", [leave, leave_unread])
@pytest.mark.parametrize("hosts", [ONE_HOST[:2], TWO_HOSTS[:2]], ids=["one", "two"])
def test_a_worker_that_is_gone_is_named(
    way: Callable[[int, Mesh], None], hosts: tuple[str, ...], tmp_path: Path
) -> None:
    mp.spawn(joined, args=(hosts, str(tmp_path), way), nprocs=2)


def knock(door: socket.socket) -> list[socket.socket]:
    """One who goes, one with a wrong word, one who stays silent."""
    strangers = []
    for greeting in (b"", b"x" * 20, None):
        stranger = socket.socket(door.family)
        stranger.connect(door.getsockname())
        strangers.append(stranger)
        if greeting is not None:
            stranger.sendall(greeting)
            stranger.close()
    return strangers


def visited(rank: int, hosts: tuple[str, ...], directory: str) -> None:
    """While rank 0 waits for rank 1, others knock first."""
    dist.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=rank, world_size=2)
    name = "_near_door" if hosts[0] == hosts[1] else "_far_door"
    open_door = getattr(mesh_module, name)

    def with_strangers(*arguments: object) -> socket.socket:
        door: socket.socket = open_door(*arguments)
        strangers.extend(knock(door))
        return door

    strangers: list[socket.socket] = []
    if rank == 0:
        setattr(mesh_module, name, with_strangers)
        mesh_module._GREETING_TIMEOUT_S = 0.2
    mesh = Mesh(hosts[rank])
    mesh.send(memoryview(bytes([rank])))
    places = [bytearray(1), bytearray(1)]
    mesh.receive([memoryview(place) for place in places])
    assert places[1 - rank] == bytes([1 - rank])
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("hosts", [ONE_HOST[:2], TWO_HOSTS[:2]], ids=["one", "two"])
def test_strangers_are_turned_away(hosts: tuple[str, ...], tmp_path: Path) -> None:
    mp.spawn(visited, args=(hosts, str(tmp_path)), nprocs=2)


def test_who_never_comes_to_an_end_is_turned_away_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_module, "_GREETING_TIMEOUT_S", 0.5)
    visitor, ours = socket.socketpair()
    sent = 0

    def trickle() -> None:
        nonlocal sent
        with contextlib.suppress(OSError):
            while sent < 20:
                visitor.sendall(b"x")
                sent += 1
                time.sleep(0.2)

    thread = threading.Thread(target=trickle)
    thread.start()
    assert mesh_module._guest(ours, b"x" * 16) is None
    assert sent < 20
    ours.close()
    thread.join()


@pytest.mark.timeout(60)
def test_where_the_kernel_gives_no_names_workers_of_one_host_meet_too(tmp_path: Path) -> None:
    mp.spawn(nameless, args=(str(tmp_path),), nprocs=2)


def nameless(rank: int, directory: str) -> None:
    """Rank 0's kernel has none, rank 1's has."""
    if rank == 0:
        mesh_module.sys = SimpleNamespace(platform="another")  # type: ignore[assignment]
    joined(rank, ONE_HOST[:2], directory, met_over_tcp)


def met_over_tcp(rank: int, mesh: Mesh) -> None:
    assert mesh._sockets[1 - rank].family == socket.AF_INET
