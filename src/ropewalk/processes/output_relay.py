"""The output of processes, from agents to the launcher's terminal and to files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from ropewalk.processes.agent_record import AgentRecord
from ropewalk.processes.messages import Output, OutputSeen
from ropewalk.processes.output import Console, output_file_name
from ropewalk.processes.owner import ProcessSpec

_STUCK_S = 5.0
"""Seconds for which the end of a pool or a program waits at most for a terminal that takes no more output."""


class OutputRelay:
    """Shows lines with the names of the processes that printed them.

    Args:
        keep_in: the folder where output is kept in files; None: the agent of this host does that itself.
        is_bounded: whether the files keep only their ends; see `bounded_output`.
    """

    def __init__(self, keep_in: Path | None, *, is_bounded: bool = False) -> None:
        self._console = Console()
        self._keep_in = keep_in
        self._is_bounded = is_bounded

    def open(self) -> None:
        """Be ready to print: threads cannot be started at the end of the interpreter. May be called again."""
        self._console.open()

    def close(self) -> None:
        """Show the output that is left."""
        self._console.close()

    def when_shown(self, call: Callable[[], object]) -> None:
        """Have a call made when all output of processes so far has been shown; from the loop's thread."""
        self._console.when_shown(call)

    def wait_until_shown(self, stuck_s: float | None = None) -> None:
        """Wait until all output of processes so far has been shown, however slow the terminal is; not in the loop.

        Args:
            stuck_s: a terminal that takes nothing for this long (seconds) is not waited for; None: 5 s.
        """
        self.so_far(stuck_s)()

    def so_far(self, stuck_s: float | None = None) -> Callable[[], None]:
        """Return a function that waits, as `wait_until_shown`, for the output until now; from the loop's thread."""
        shown = threading.Event()
        self.when_shown(shown.set)

        def wait() -> None:
            before = -1
            while not shown.wait(_STUCK_S if stuck_s is None else stuck_s) and self._console.num_shown != before:
                before = self._console.num_shown

        return wait

    def show(self, who: str, text: str) -> None:
        """Print whole lines to stderr in the name of a process, after its own output; from the loop's thread."""
        self._console.show(who, text, True, lambda: None)

    def take(self, agent: AgentRecord, output: Output, spec: ProcessSpec | None) -> None:
        """Handle output of a process.

        Args:
            agent: agent of the process, which is told when this was shown: it sends a limited amount ahead.
            output: the output.
            spec: spec of the process; None: it is not known here.
        """
        who = f"{spec.group} {spec.rank}@{agent.host}" if spec else f"?@{agent.host}"
        if spec and spec.plain_output and not self._keep_in:
            who = ""

        def shown() -> None:
            if agent.link:
                agent.link.send_if_open(OutputSeen(output.size_bytes))

        if self._keep_in and spec:
            path = self._keep_in / output_file_name(spec.output or spec.name)
            self._console.keep(output.text, path, is_bounded=self._is_bounded)
        self._console.show(who, output.text, output.is_error, shown)
