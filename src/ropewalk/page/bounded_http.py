"""`BoundedHttp`: HTTP of the page, of which strangers cannot keep connections or memory.

uvicorn has no limit for the time until a request has come, and with httptools none for the size of its headers.
"""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""Seconds within which the headers of the first request have to come."""


class BoundedHttp(H11Protocol):
    """Closes a connection without a request; h11 refuses headers of more than 64 KiB."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        super().connection_made(cast("asyncio.Transport", transport))
        self.loop.call_later(HEAD_S, self._close_unless_asked, transport)

    def _close_unless_asked(self, transport: asyncio.BaseTransport) -> None:
        # A WebSocket has another protocol by now; `cycle` is that of the last request.
        if cast("asyncio.Transport", transport).get_protocol() is self and not cast("object | None", self.cycle):
            transport.close()
