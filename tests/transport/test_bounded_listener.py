"""A crowd of strangers at a server that is not ours, which keeps what it refuses until the other side closes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.transport.authority import RunAuthority
from ropewalk.transport.bounded_listener import BoundedListener
from tests.patience import PATIENCE_S, wait_until

MOST = 3


@pytest.fixture
def listener() -> Iterator[BoundedListener]:
    plain = socket.create_server(("127.0.0.1", 0))
    with BoundedListener(plain, MOST) as bounded:
        assert plain.fileno() == -1
        yield bounded


def connected(listener: BoundedListener, source: str = "127.0.0.1") -> socket.socket:
    sock = socket.create_connection(listener.getsockname(), PATIENCE_S, (source, 0))
    return sock


def is_hung_up(sock: socket.socket) -> bool:
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        return sock.recv(1) == b""
    return False


def test_of_a_crowd_the_oldest_are_hung_up_on_and_who_was_admitted_stays(listener: BoundedListener) -> None:
    with contextlib.ExitStack() as held:
        clients: list[socket.socket] = []
        for number in range(2 * MOST):
            clients.append(held.enter_context(connected(listener)))
            accepted, peer = listener.accept()
            held.enter_context(accepted)
            if number == 1:
                listener.admit(peer)
                listener.admit(peer)
        wait_until(  # a busy kernel delivers an end later
            lambda: [is_hung_up(client) for client in clients],
            wanted=lambda seen: seen == [True, False, True, False, False, False],
        )


def test_a_source_that_floods_crowds_out_itself(listener: BoundedListener) -> None:
    with contextlib.ExitStack() as held:
        visitor = held.enter_context(connected(listener, "127.0.0.2"))
        held.enter_context(listener.accept()[0])
        for _ in range(10):
            held.enter_context(connected(listener))
            held.enter_context(listener.accept()[0])
        assert not is_hung_up(visitor)


def test_what_its_server_has_closed_does_not_count(listener: BoundedListener) -> None:
    with contextlib.ExitStack() as held:
        first = held.enter_context(connected(listener))
        held.enter_context(listener.accept()[0])
        for _ in range(10):
            with connected(listener), listener.accept()[0]:
                pass
        assert not is_hung_up(first)


@pytest.mark.parametrize("completes", [False, True], ids=["before the handshake", "after it"])
def test_a_crowd_at_a_tls_server_of_asyncio_keeps_no_descriptors(
    listener: BoundedListener, tmp_path: Path, completes: bool
) -> None:
    """asyncio waits a minute for a handshake, and half a minute for the end of a connection that it closes."""
    issued = RunAuthority.create("run").issue("server", names=["127.0.0.1"])
    (tmp_path / "chain.pem").write_text(issued.cert_pem + issued.ca_pem)
    (tmp_path / "key.pem").write_text(issued.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "chain.pem", tmp_path / "key.pem")
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE

    async def flood() -> int:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, sock=listener, ssl=context)
        host, port = listener.getsockname()
        opened = [
            await asyncio.open_connection(host, port, ssl=anybody if completes else None) for _ in range(4 * MOST)
        ]
        ends = [asyncio.ensure_future(reader.read()) for reader, _ in opened]
        while (num_gone := sum(end.done() for end in ends)) < 3 * MOST:
            await asyncio.wait([end for end in ends if not end.done()], return_when=asyncio.FIRST_COMPLETED)
        for _, writer in opened:
            writer.transport.abort()
        await asyncio.gather(*ends, return_exceptions=True)
        server.close()
        await server.wait_closed()
        return num_gone

    assert asyncio.run(asyncio.wait_for(flood(), PATIENCE_S)) == 3 * MOST
