"""A tab belongs to the role that opened it, whoever knows its id."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ropewalk.page.tab_roles import tie_tabs_to_roles

ROLES = {"socket of owner": "owner", "socket of reader": "reader"}


def handled(event: str, socket: str, *data: Any) -> tuple[object, list[Any]]:
    """What a handler answers to a message of a socket, and what it saw."""
    seen: list[Any] = []

    def plain(socket: str, *data: Any) -> str:
        seen.append(data)
        return "done"

    async def slow(socket: str, *data: Any) -> str:
        return plain(socket, *data)

    handlers: dict[str, Any] = {"connect": slow, "handshake": slow, "event": plain, "disconnect": plain}
    tie_tabs_to_roles(handlers, ROLES.get, {"tab of owner": "owner", "tab of reader": "reader"}.get)  # type: ignore[arg-type]
    return asyncio.run(handlers[event](socket, *data)), seen


@pytest.mark.parametrize("event", ["handshake", "event"])
def test_only_the_role_that_opened_a_tab_reaches_it(event: str):
    message = {"client_id": "tab of owner"}
    assert handled(event, "socket of owner", message) == ("done", [(message,)])
    assert handled(event, "socket of reader", message) == (False, [])
    assert handled(event, "unknown socket", message) == (False, [])
    assert handled(event, "socket of owner", {"client_id": "tab of reader"}) == (False, [])


def test_a_connection_that_names_the_tab_of_another_role_is_refused():
    query = {"QUERY_STRING": "client_id=tab%20of%20owner&implicit_handshake=true"}
    assert handled("connect", "socket of owner", query, None)[0] == "done"
    assert handled("connect", "socket of reader", query, None) == (False, [])


def test_messages_that_name_no_known_tab_are_for_nicegui_to_judge():
    assert handled("event", "socket of reader", {"client_id": "gone"})[0] == "done"
    assert handled("event", "socket of reader", "nonsense")[0] == "done"
    assert handled("handshake", "socket of reader")[0] == "done"
