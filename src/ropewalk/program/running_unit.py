"""A host's record of a unit that runs in it: its nodes, its connections to others, and the progress of its end."""

from __future__ import annotations

import threading
from typing import Any

from ropewalk.calls.caller import Caller
from ropewalk.calls.incoming import Served
from ropewalk.program.directory import DirectoryView
from ropewalk.program.kept_state import KeptState
from ropewalk.program.messages import UnitName
from ropewalk.program.node import Node
from ropewalk.program.node_context import NodeContext
from ropewalk.transport.failures import Failure


class RunningNode:
    """One node that runs here."""

    def __init__(self, node: Node[Any], context: NodeContext) -> None:
        self.node = node
        self.context = context
        self.served: Served | None = None
        self.state: KeptState | None = None
        self.waits_for_stop = False
        """Whether its own work goes on until it is asked to end."""
        self.failure: Failure | None = None
        self.exit_code = 1
        """The exit code of its process if it is the first of its unit to fail."""
        self.ended: threading.Event = threading.Event()


class RunningUnit:
    """One start of a unit.

    It calls services over links of its own, so that its calls can be ended with it, in threads mode too.
    """

    def __init__(self, name: UnitName, view: DirectoryView, caller: Caller) -> None:
        self.name = name
        self.view = view
        self.caller = caller
        self.nodes: list[RunningNode] = []
        self.lock: threading.Lock = threading.Lock()
        self.over: threading.Event = threading.Event()
        self.concluded = False
        self.stopping = False
        self.noticed_until: float = 0.0
        """Until this monotonic time, SIGTERM may tell it what it was asked already: to end."""
        self.why_stopping = ""
        """Why it was asked to end; empty if it was not."""
        self.has_callers = False
        """Whether the callers of its services go on when it has been stopped."""
        self.failed_first: RunningNode | None = None
