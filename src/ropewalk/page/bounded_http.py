"""`BoundedHttp`: HTTP of the page, of which strangers cannot keep connections or memory, nor fill its terminal.

uvicorn has no limit for the time until a request has come, none for the number of such connections, and with httptools
none for the size of its headers; it logs each request that is none.
"""

from __future__ import annotations

import asyncio
import logging
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""Seconds within which the headers of the first request have to come."""
MOST_SILENT = 256
"""Connections that have asked for nothing. Of more, the oldest is closed: they would take all descriptors."""
_OF_STRANGERS = {"Invalid HTTP request received.", "Unsupported upgrade request."}
"""What uvicorn logs of each request that is none, whoever has sent it."""


class BoundedHttp(H11Protocol):
    """Closes a connection without a request; h11 refuses headers of more than 64 KiB."""

    silent: dict[BoundedHttp, None] = {}  # noqa: RUF012  # of this process, which serves one page
    """Connections that have asked for nothing so far, the oldest one first."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        super().connection_made(cast("asyncio.Transport", transport))
        self.loop.call_later(HEAD_S, self._close_unless_asked, transport)
        self.silent[self] = None
        if len(self.silent) > MOST_SILENT:
            oldest = next(iter(self.silent))
            del self.silent[oldest]
            oldest.transport.close()

    def data_received(self, data: bytes) -> None:
        """Take bytes, which may complete a request."""
        super().data_received(data)
        if cast("object | None", self.cycle) or self.transport.get_protocol() is not self:
            self.silent.pop(self, None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection that is gone."""
        self.silent.pop(self, None)
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
