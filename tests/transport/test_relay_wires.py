"""A relay on a third machine, over wires that are far, lossy, slow and cut."""

from __future__ import annotations

import contextlib
import hashlib
import random
import socket
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ropewalk.transport import relay, splice
from ropewalk.transport.joining import join, new_ticket
from ropewalk.transport.relay import Relay
from tests.lab import Lab, Machine
from tests.patience import PATIENCE_S, wait_until
from tests.transport.ends import on_loop, running_loop

Pair = tuple[socket.socket, socket.socket]


@contextlib.contextmanager
def relayed(
    lab: Lab, change: Callable[[Machine, Machine], object] = lambda a, b: None
) -> Generator[tuple[Pair, Relay, list[Machine]]]:
    """Two sockets on machines a and b that met on machine r, and [a, b, r]."""
    a, b, r = lab.machine("a"), lab.machine("b"), lab.machine("r")
    change(a, b)
    with running_loop() as loop, ThreadPoolExecutor(2) as executor:
        board = Relay(loop)
        at = r.on_wire(lambda: board.listen_tcp(r.ip))  # the loop has nothing else to do yet
        ticket = new_ticket()
        on_loop(loop, lambda: board.expect(ticket, PATIENCE_S))
        sides = [executor.submit(machine.on_wire, lambda: join(at, ticket, PATIENCE_S)) for machine in (a, b)]
        one, other = (side.result() for side in sides)
        try:
            with one, other:
                for sock in (one, other):
                    sock.settimeout(PATIENCE_S)
                yield (one, other), board, [a, b, r]
        finally:
            on_loop(loop, board.close)


def num_splices(board: Relay) -> int:
    return on_loop(board._loop, lambda: len(board._splices))


def send_digest(sock: socket.socket, num_bytes: int) -> str:
    digest, randomness = hashlib.sha256(), random.Random(1)
    while num_bytes:
        piece = randomness.randbytes(min(num_bytes, 1 << 18))
        digest.update(piece)
        sock.sendall(piece)
        num_bytes -= len(piece)
    sock.shutdown(socket.SHUT_WR)
    return digest.hexdigest()


def receive_digest(sock: socket.socket) -> str:
    digest = hashlib.sha256()
    while piece := sock.recv(1 << 18):
        digest.update(piece)
    return digest.hexdigest()


@pytest.mark.parametrize("wire", ["plain", "20 ms away", "2 % lost", "10 Mbit/s"])
def test_bytes_come_whole_over_any_wire_both_ways(lab: Lab, wire: str) -> None:
    changes: dict[str, Callable[[Machine, Machine], object]] = {
        "plain": lambda a, b: None,
        "20 ms away": lambda a, b: lab.delay(b, 0.02),
        "2 % lost": lambda a, b: lab.lossy(b, 0.02),
        "10 Mbit/s": lambda a, b: lab.slow(b, 10e6),
    }
    with relayed(lab, changes[wire]) as ((one, other), _, (_, _, r)), ThreadPoolExecutor(4) as executor:
        before = r.bytes_received()
        sent = [executor.submit(send_digest, sock, 1 << 20) for sock in (one, other)]
        came = [executor.submit(receive_digest, sock) for sock in (other, one)]
        assert [future.result() for future in came] == [future.result() for future in sent]
        assert r.bytes_received() - before > 2 << 20, "it went through the third machine"


def test_a_short_cut_loses_nothing(lab: Lab) -> None:
    with relayed(lab) as ((one, other), _, (_, b, _)), ThreadPoolExecutor(2) as executor:
        came = executor.submit(receive_digest, other)
        sent = executor.submit(send_digest, one, 24 << 20)
        wait_until(lambda: b.bytes_received() > 1 << 20)
        lab.cut(b)
        time.sleep(1.0)
        lab.heal(b)
        assert came.result() == sent.result()


def test_a_host_that_is_cut_off_ends_its_splices_soon_when_data_is_under_way(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splice, "SILENCE_S", 2.0)
    with relayed(lab) as ((one, other), board, (_, b, _)):
        one.sendall(bytes(10_000))
        receive_exactly(other, 10_000)
        lab.cut(b)
        one.sendall(b"are you there?")
        began = time.monotonic()
        assert one.recv(1) == b"", "the end is heard"
        assert time.monotonic() - began > 1.5
        wait_until(lambda: num_splices(board) == 0)


def test_a_host_that_is_cut_off_ends_its_splices_when_nothing_is_under_way(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = {socket.TCP_KEEPIDLE: 1, socket.TCP_KEEPINTVL: 1, socket.TCP_KEEPCNT: 3}
    monkeypatch.setattr(splice, "_KEEPALIVE", often)
    with relayed(lab) as ((one, other), board, (_, b, _)):
        one.sendall(bytes(10_000))
        receive_exactly(other, 10_000)
        lab.cut(b)
        assert one.recv(1) == b""
        wait_until(lambda: num_splices(board) == 0)


def test_a_host_that_is_well_and_only_does_not_read_is_waited_for(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP_USER_TIMEOUT would end this one: a worker computes and reads nothing for longer than the kernel likes."""
    monkeypatch.setattr(splice, "SILENCE_S", 0.5)
    monkeypatch.setattr(relay, "_LOOK_S", 0.05)
    with relayed(lab) as ((one, other), board, _):
        one.settimeout(0.5)
        written = 0
        with contextlib.suppress(TimeoutError):
            while True:
                written += one.send(bytes(1 << 16))
        threading.Event().wait(4)  # several of the kernel's questions whether there is room now
        assert num_splices(board) == 1
        one.shutdown(socket.SHUT_WR)
        receive_exactly(other, written)
        assert other.recv(1) == b""


def receive_exactly(sock: socket.socket, num_bytes: int) -> None:
    while num_bytes:
        piece = sock.recv(min(num_bytes, 1 << 20))
        assert piece, f"{num_bytes} bytes are missing"
        num_bytes -= len(piece)
