"""Workers' connections to each other: real processes, real sockets, no Ray."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from ray_cfnet.cluster import mesh as mesh_module
from ray_cfnet.cluster.mesh import MOST_BYTES, Mesh

HOST = "127.0.0.1"


def joined(rank: int, num_workers: int, directory: str, work: Callable[[int, Mesh], None]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=rank, world_size=num_workers)
    work(rank, Mesh(HOST))
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


@pytest.mark.timeout(60)
def test_everybody_gets_everybodys_messages_in_their_order(tmp_path: Path) -> None:
    mp.spawn(joined, args=(3, str(tmp_path), exchange), nprocs=3)


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
def test_a_worker_that_is_gone_is_named(way: Callable[[int, Mesh], None], tmp_path: Path) -> None:
    mp.spawn(joined, args=(2, str(tmp_path), way), nprocs=2)


def visited(rank: int, num_workers: int, directory: str) -> None:
    """While rank 0 waits for rank 1, others knock first: one who goes, one with a wrong word, one who stays silent."""
    dist.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=rank, world_size=num_workers)
    create_server = socket.create_server

    def with_strangers(*arguments: object, **options: object) -> socket.socket:
        door = create_server(*arguments, **options)  # type: ignore[arg-type]
        for greeting in (b"", b"x" * 20, None):
            stranger = socket.create_connection(door.getsockname())
            strangers.append(stranger)
            if greeting is not None:
                stranger.sendall(greeting)
                stranger.close()
        return door

    strangers: list[socket.socket] = []
    if rank == 0:
        socket.create_server = with_strangers
        mesh_module._GREETING_TIMEOUT_S = 0.2
    mesh = Mesh(HOST)
    mesh.send(memoryview(bytes([rank])))
    places = [bytearray(1), bytearray(1)]
    mesh.receive([memoryview(place) for place in places])
    assert places[1 - rank] == bytes([1 - rank])
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.timeout(60)
def test_strangers_are_turned_away(tmp_path: Path) -> None:
    mp.spawn(visited, args=(2, str(tmp_path)), nprocs=2)
