"""The status of a running program, collected from supervisor, hosting and hosts."""

from __future__ import annotations

import os
import time

from ropewalk.program.conductor import Conductor
from ropewalk.program.instructions import ProgramOutcome, ReplicaState, ReplicaStatus
from ropewalk.program.node import NodeSpec
from ropewalk.program.status import NodeCall, NodeState, NodeStatus, ProgramState, ProgramStatus

_ANSWER_S = 0.5
"""Timeout in seconds for the reports of hosts; for those that do not answer, the last report is shown."""
_NODE_STATES: dict[ReplicaState, NodeState] = {
    ReplicaState.WAITING: "waiting",
    ReplicaState.STARTING: "starting",
    ReplicaState.READY: "running",
    ReplicaState.ENDING: "stopping",
    ReplicaState.COMPLETED: "completed",
    ReplicaState.FAILED: "failed",
    ReplicaState.STOPPED: "ended",
    ReplicaState.REMOVED: "ended",
}
_OUTCOMES: dict[ProgramOutcome, ProgramState] = {
    ProgramOutcome.COMPLETED: "completed",
    ProgramOutcome.STOPPED: "stopped",
    ProgramOutcome.FAILED: "failed",
}


def state_of(conductor: Conductor) -> ProgramState:
    """The state of a program; from any thread."""
    outcome = conductor.supervisor.outcome
    if outcome is not ProgramOutcome.RUNNING:
        return _OUTCOMES[outcome] if conductor.supervisor.done else "stopping"
    started = conductor.is_ready or any(unit.address for unit in conductor.units)
    return "running" if started else "starting"


def put_question(conductor: Conductor, number: int) -> int:
    """Ask all hosts for the state of their nodes; on the loop. Returns the number of hosts asked."""
    conductor.reports.answers[number] = 0
    return conductor.reports.ask(number)


def await_answers(conductor: Conductor, number: int, num_asked: int) -> None:
    """Wait until the hosts have answered, or for `_ANSWER_S`; from any thread but the loop's."""
    conductor.changed.wait_until(
        lambda: conductor.reports.answers.get(number, 0) >= num_asked or conductor.supervisor.done, _ANSWER_S
    )
    # On the loop, which may be counting an answer that comes too late.
    conductor.hosting.loop.call_soon(lambda: conductor.reports.answers.pop(number, None))


def report(conductor: Conductor, run_id: str, started: float) -> ProgramStatus:
    """The status as known now; from any thread, without waiting."""
    nodes = [
        _node(conductor, status, spec)
        for status in conductor.supervisor.replicas
        for spec in conductor.units.nodes[status.name]
    ]
    return ProgramStatus(
        name=conductor.name,
        run_id=run_id,
        pid=os.getpid(),
        state=state_of(conductor),
        mode=conductor.hosting.mode,
        started=started,
        nodes=tuple(nodes),
        events=tuple(conductor.events),
        ways=conductor.hosting.ways(),
    )


def _node(conductor: Conductor, status: ReplicaStatus, spec: NodeSpec) -> NodeStatus:
    hosting = conductor.hosting
    unit = conductor.units.at(status.name, status.replica)
    sample = hosting.sample_of(unit.name) if unit else None
    calls = conductor.reports.calls.get((spec.name, status.replica)) if unit else None
    if calls and unit and calls.unit != unit.name:
        calls = None  # the calls are its predecessor's
    state = _NODE_STATES[status.state]
    if status.state in (ReplicaState.WAITING, ReplicaState.STARTING) and status.num_failures:
        state = "restarting"
    return NodeStatus(
        name=spec.name,
        replica=status.replica,
        kind=spec.node.kind,
        state=state,
        generation=max(0, status.generation),
        pid=hosting.pid_of(unit.name) if unit else 0,
        host=hosting.host_of(unit.name) if unit else "",
        restarts=status.num_failures - (status.state is ReplicaState.FAILED),
        uptime_s=time.monotonic() - unit.started if unit else 0.0,
        memory_bytes=sample.memory_bytes if sample else 0,
        cpu_s=sample.cpu_s if sample else 0.0,
        calls_done=calls.num_done if calls else 0,
        calls_waiting=calls.num_waiting if calls else 0,
        calls_running=tuple(NodeCall(call.label, call.running_s) for call in calls.running) if calls else (),
        last_cause=status.cause,
    )
