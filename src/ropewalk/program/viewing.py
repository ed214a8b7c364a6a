"""The `View` of a program: its status, as `ropewalk ps`, the page and reports show the state of anything that runs."""

from __future__ import annotations

import time

from ropewalk.control.view import EventView, ProcessView, View
from ropewalk.program.status import NodeStatus, ProgramStatus

_SHOWN_CALLS = 3


def program_view(status: ProgramStatus, id: str) -> View:
    """Return what a program shows of itself.

    Args:
        status: its state.
        id: as in `View`.
    """
    return View(
        kind="program",
        name=status.name,
        id=id,
        pid=status.pid,
        state=status.state,
        started=status.started,
        at=time.time(),
        facts={"mode": status.mode},
        processes=tuple(map(_process, status.nodes)),
        events=tuple(EventView(text=text) for text in status.events),
        actions=("stop",),
        process_actions=("restart", "stack") if status.mode == "threads" else ("kill", "restart", "stack"),
    )


def _process(node: NodeStatus) -> ProcessView:
    calls = sorted(node.calls_running, key=lambda call: -call.running_s)
    more = f" and {len(calls) - _SHOWN_CALLS} more" if len(calls) > _SHOWN_CALLS else ""
    return ProcessView(
        name=node.label,
        group=node.name,
        kind=node.kind,
        host=node.host,
        pid=node.pid,
        state=node.state,
        doing=f"{', '.join(call.method for call in calls[:_SHOWN_CALLS])}{more}",
        doing_s=calls[0].running_s if calls else 0.0,
        uptime_s=node.uptime_s,
        memory_bytes=node.memory_bytes,
        cpu_s=node.cpu_s,
        restarts=node.restarts,
        done=node.calls_done,
        waiting=node.calls_waiting,
        last_cause=node.last_cause,
    )
