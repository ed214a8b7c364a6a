"""A context for one node in a thread of the test: clients are the objects themselves, nothing is sent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from typing import Any

from ropewalk.program.handle import replace_handles


class StandIn:
    """What a node may use of its `NodeContext`; `objects` are what handles become."""

    def __init__(self, objects: Mapping[str, Any] | None = None, *, replica: int = 0, replicas: int = 1) -> None:
        self.name, self.replica, self.replicas, self.generation, self.attempt = "node", replica, replicas, 0, 0
        self.served: Any = None
        self.methods: Mapping[str, Any] = {}
        self.is_served = threading.Event()
        self.is_waiting = threading.Event()
        self.stop = threading.Event()
        self._objects = objects or {}

    @property
    def stopping(self) -> bool:
        return self.stop.is_set()

    def resolve(self, value: Any) -> Any:
        return replace_handles(value, lambda handle: self._objects[handle.name], lambda deferred: deferred.build())

    def serve(self, served: Any, methods: Mapping[str, Any]) -> None:
        self.served, self.methods = served, methods
        self.is_served.set()

    def wait_for_stop(self, timeout_s: float | None = None) -> bool:
        self.is_waiting.set()
        return self.stop.wait(timeout_s)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
