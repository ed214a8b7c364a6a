"""Connections between two machines, held by the process of the tests, and what is measured over them."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

from tests.lab.machine import Machine

#: More than any condition of these tests explains.
TIMEOUT_S = 20.0


@contextlib.contextmanager
def connected(dialler: Machine, listener: Machine) -> Generator[tuple[socket.socket, socket.socket]]:
    """A TCP connection over the wire: the ends of the machine that dialled and of the one that was dialled."""
    with listener.listen() as server:
        dialled = dialler.connect(listener.ip, server.getsockname()[1], TIMEOUT_S)
        accepted, _ = server.accept()
    with dialled, accepted:
        for end in (dialled, accepted):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.settimeout(TIMEOUT_S)
        yield dialled, accepted


def receive(sock: socket.socket, num_bytes: int) -> bytes:
    """Exactly `num_bytes` bytes."""
    parts: list[bytes] = []
    while num_bytes:
        part = sock.recv(min(num_bytes, 1 << 20))
        assert part, "the other end closed the connection"
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)


def round_trip_s(dialled: socket.socket, accepted: socket.socket, *, rounds: int = 10) -> float:
    """The shortest time from a small message sent to its answer heard."""
    took_s: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        dialled.sendall(bytes(100))
        receive(accepted, 100)
        accepted.sendall(bytes(100))
        receive(dialled, 100)
        took_s.append(time.perf_counter() - began)
    return min(took_s)


def carry(sender: socket.socket, receiver: socket.socket, num_bytes: int) -> float:
    """Carry `num_bytes` over and return the seconds that took; what comes has to be what went."""
    payload = bytes(range(256)) * (num_bytes // 256)
    with ThreadPoolExecutor(1) as executor:
        began = time.perf_counter()
        sent = executor.submit(sender.sendall, payload)
        came = receive(receiver, len(payload))
        took_s = time.perf_counter() - began
        sent.result()
    assert came == payload
    return took_s
