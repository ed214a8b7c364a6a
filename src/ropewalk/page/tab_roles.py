"""Ties each tab to the role that opened it.

NiceGUI takes a message for that of a tab if it names the id of the tab, from any socket. So a reader who learned the id
of an owner's tab could act through it. Here each message, the handshake included, has to come by a socket of the role
for which the tab was made.
"""

from __future__ import annotations

import inspect
import logging
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, cast

from ropewalk.page.gate import Role

logger = logging.getLogger(__name__)

Handler = Callable[..., Any]


def tie_tabs_to_roles(
    handlers: dict[str, Handler], role_of_socket: Callable[[str], object], role_of_tab: Callable[[str], Role | None]
) -> None:
    """Let handlers of a socket see only messages of those who opened the tab that is named.

    Args:
        handlers: of a socketio server, by event; they are replaced.
        role_of_socket: the role of who opened a socket, by its id; None if it is closed by now.
        role_of_tab: the role of who opened a tab, by its id; None if there is no such tab.
    """

    def guarded(handler: Handler) -> Handler:
        async def handle(socket: str, *data: Any) -> Any:
            tab = _named_tab(data[0] if data else None)
            owner = role_of_tab(tab) if tab else None
            if owner is not None and (role := role_of_socket(socket)) != owner:
                if role is not None:
                    logger.warning("a socket of a %s named a tab of a %s, and was refused", role, owner)
                return False  # which also refuses a connection
            answer = handler(socket, *data)
            return await answer if inspect.isawaitable(answer) else answer

        return handle

    for event, handler in list(handlers.items()):
        if event != "disconnect":
            handlers[event] = guarded(handler)


def _named_tab(data: object) -> str:
    """Return the id of the tab that a message names, or the query of a connection."""
    if not isinstance(data, Mapping):
        return ""
    message = cast("Mapping[str, object]", data)
    in_query = urllib.parse.parse_qs(str(message.get("QUERY_STRING", ""))).get("client_id", [""])
    return str(message.get("client_id", in_query[0]))


__all__ = ["tie_tabs_to_roles"]
