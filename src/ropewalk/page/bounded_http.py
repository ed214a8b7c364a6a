"""`BoundedHttp`: HTTP of the page, of which strangers cannot keep connections or memory, nor fill its terminal.

uvicorn has no limit for the time until a request has come, and with httptools none for the size of its headers; it logs
each request that is none. `transport/bounded_listener.py` limits the number of such connections.
"""

from __future__ import annotations

import asyncio
import logging
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""Seconds within which the headers of the first request have to come."""
_OF_STRANGERS = {"Invalid HTTP request received.", "Unsupported upgrade request."}
"""What uvicorn logs of each request that is none, whoever has sent it."""


class BoundedHttp(H11Protocol):
    """Closes a connection without a request; h11 refuses headers of more than 64 KiB."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._deadline = self.loop.call_later(HEAD_S, self._close_unless_asked, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline: the transport of a closed TLS connection cannot be asked for anything any more."""
        self._deadline.cancel()
        super().connection_lost(exc)

    def _close_unless_asked(self, transport: asyncio.BaseTransport) -> None:
        # A WebSocket has another protocol by now; `cycle` is that of the last request.
        if cast("asyncio.Transport", transport).get_protocol() is self and not cast("object | None", self.cycle):
            transport.close()


class StrangersOnce(logging.Filter):
    """Lets each warning pass once that anybody can cause who reaches the port; a filter of a logger."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged."""
        text = record.getMessage()
        if text not in _OF_STRANGERS:
            return True
        if text in self._told:
            return False
        self._told.add(text)
        why = "it was refused; anybody who reaches the port can cause this, and it is said once"
        record.msg, record.args = f"{text.rstrip('.')}; {why}", ()
        return True
