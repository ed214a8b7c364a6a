"""The connections of one process to those that it calls."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ropewalk.calls import caller as module
from ropewalk.calls.caller import Caller
from ropewalk.calls.directory import ReplicaLocation
from ropewalk.calls.rpc_connection import RpcConnection
from tests.patience import PATIENCE_S


class Connection:
    """In the place of an `RpcConnection`."""

    def __init__(self, *_: object) -> None:
        self.closed = ""

    def close(self, why: str) -> None:
        self.closed = why


class SlowDict(dict[str, Any]):
    """Lets both threads see that a connection has ended before either replaces it."""

    def __init__(self, meeting: threading.Barrier) -> None:
        super().__init__()
        self._meeting = meeting

    def setdefault(self, key: str, default: Any = None) -> Any:
        found = super().setdefault(key, default)
        self._meeting.wait(PATIENCE_S)
        return found


def test_two_threads_that_replace_a_connection_at_once_share_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that `lose` does not find is used for ever after its host is lost."""
    both = threading.Barrier(2)
    made: list[Connection] = []

    def connection(*_: object) -> Connection:
        new = Connection()
        made.append(new)
        both.wait(PATIENCE_S)
        return new

    monkeypatch.setattr(module, "dial", lambda *_, **__: None)
    monkeypatch.setattr(module, "RpcConnection", connection)
    caller = Caller(None, None, "run", "me")  # type: ignore[arg-type]
    caller._connections = SlowDict(both)  # pyright: ignore[reportPrivateUsage]
    place = ReplicaLocation("up", "unix:/tmp/x", token="token")
    ended = Connection()
    ended.close("the process was killed")
    caller._connections[place.address] = ended  # type: ignore[assignment]  # pyright: ignore[reportPrivateUsage]
    with ThreadPoolExecutor(2) as threads:
        used: list[RpcConnection] = list(threads.map(lambda _: caller.connection_to("store", place), range(2)))
    assert len(made) == 2
    assert used[0] is used[1]
    caller.lose(place.address, "its host is lost")
    assert all(each.closed for each in made)
