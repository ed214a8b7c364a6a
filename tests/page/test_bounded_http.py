from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

pytest.importorskip("uvicorn")

import uvicorn
from uvicorn.server import ServerState

from ropewalk.page.bounded_http import HEAD_S, BoundedHttp, StrangersOnce


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


@dataclass
class Alarm:
    """What is called later."""

    delay_s: float
    call: Callable[[], object]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Alarms:
    """Keeps what is planned, in place of a loop's clock."""

    def __init__(self) -> None:
        self.planned: list[Alarm] = []

    def call_later(self, delay_s: float, call: Any, *args: Any) -> Alarm:
        self.planned.append(Alarm(delay_s, partial(call, *args)))
        return self.planned[-1]

    def create_task(self, coroutine: Any, **_: Any) -> Future[None]:
        coroutine.close()
        return Future()


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
    [alarm] = alarms.planned
    assert alarm.delay_s == HEAD_S
    alarm.call()
    assert connection.is_closed


def test_connection_that_became_a_websocket_stays():
    _, connection, alarms = connected()
    connection.protocol = asyncio.Protocol()
    [alarm] = alarms.planned
    alarm.call()
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


def test_deadline_of_a_connection_that_is_gone_is_forgotten():
    """A closed transport of TLS raises an error when it is asked for its protocol, which was printed."""
    protocol, _, alarms = connected()
    [alarm] = alarms.planned
    protocol.connection_lost(None)
    assert alarm.is_cancelled


def test_what_strangers_send_is_logged_once(caplog: pytest.LogCaptureFixture):
    logger = logging.getLogger("of strangers")
    once = StrangersOnce()
    logger.addFilter(once)
    for _ in range(100):
        logger.warning("Invalid HTTP request received.")
        logger.warning("Unsupported upgrade request.")
    logger.warning("a failure of ours")
    said = "; it was refused; anybody who reaches the port can cause this, and it is said once"
    assert caplog.messages == [
        f"Invalid HTTP request received{said}",
        f"Unsupported upgrade request{said}",
        "a failure of ours",
    ]
