from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("uvicorn")

import uvicorn
from uvicorn.server import ServerState

from ropewalk.page.bounded_http import HEAD_S, BoundedHttp


class SilentConnection(asyncio.Transport):
    """A connection over which nothing comes."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: asyncio.BaseProtocol | None = None
        self.sent = b""
        self.is_closed = False

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


class Alarms:
    """Calls what is planned at once when it is asked to, in place of a loop's clock."""

    def __init__(self) -> None:
        self.planned: list[tuple[float, Any, Any]] = []

    def call_later(self, delay_s: float, call: Any, *args: Any) -> None:
        self.planned.append((delay_s, call, args))


async def app(scope: Any, receive: Any, send: Any) -> None:
    del scope, receive, send


def connected() -> tuple[BoundedHttp, SilentConnection, Alarms]:
    config = uvicorn.Config(app, http=BoundedHttp, log_config=None)
    alarms, connection = Alarms(), SilentConnection()
    protocol: Any = BoundedHttp(config, ServerState(), {}, alarms)  # type: ignore[arg-type]
    connection.protocol = protocol
    protocol.connection_made(connection)
    return protocol, connection, alarms


def test_connection_without_a_request_is_closed():
    protocol, connection, alarms = connected()
    protocol.data_received(b"GET / HTTP/1.1\r\nHost: ")
    [(delay_s, call, args)] = alarms.planned
    assert delay_s == HEAD_S
    call(*args)
    assert connection.is_closed


def test_connection_that_became_a_websocket_stays():
    _, connection, alarms = connected()
    connection.protocol = asyncio.Protocol()
    [(_, call, args)] = alarms.planned
    call(*args)
    assert not connection.is_closed


def test_endless_headers_are_refused():
    protocol, connection, _ = connected()
    protocol.data_received(b"GET / HTTP/1.1\r\n")
    for number in range(100):
        if connection.is_closed:
            break
        protocol.data_received(b"X-%d: " % number + b"a" * 10_000 + b"\r\n")
    assert connection.is_closed
    assert connection.sent.startswith(b"HTTP/1.1 400")
