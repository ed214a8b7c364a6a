"""`RunningProgram`: a program that was launched; the thin loop round its supervisor.

    hosts ──ready, ended──▶ Supervisor ──Start, End──▶ hosting ──▶ processes or threads
                                │
                                └──▶ Table ──Placed──▶ every host that asked

Everything that changes a state happens on the hosting's loop; methods for users hand
over a call to it and wait.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ropewalk.calls.client import Caller, Client
from ropewalk.engines.resources import Resources
from ropewalk.errors import ProgramFailed, RopewalkError
from ropewalk.program import stacks
from ropewalk.program.control import ControlServer
from ropewalk.program.directory import Table, View
from ropewalk.program.hosting import Hosting, Launch
from ropewalk.program.instructions import Completed, End, Failed, Instruction, NodeRule, Outcome, ReplicaState, Start
from ropewalk.program.log_files import LogFile
from ropewalk.program.messages import (
    AskStatus,
    HostStatus,
    Locate,
    NodeCalls,
    NodeReady,
    NodeStart,
    Note,
    OfferRendezvous,
    Placed,
    RendezvousAt,
    Sizes,
    StartUnit,
    StopProgram,
    StopUnit,
    UnitEnded,
    UnitName,
    UnitUp,
)
from ropewalk.program.node import NodeSpec
from ropewalk.program.packing import PackedProgram
from ropewalk.program.status import NodeStatus, ProgramStatus, RunningCall
from ropewalk.program.supervisor import Supervisor
from ropewalk.supervision.failure import DeathRecord
from ropewalk.transport.credentials import token_of
from ropewalk.transport.failures import rebuild_error
from ropewalk.transport.loop import Loop, Timer

T = TypeVar("T")

#: Seconds that nodes get to end after being asked, if `stop` does not say otherwise.
GRACE_S = 5.0
#: Seconds between SIGTERM, at the end of the grace, and SIGKILL.
_TERMINATE_S = 1.0
_STATUS_S = 0.5
_MOST_EVENTS = 200
_MOST_RECORDS = 1000
_LAUNCHER = "launcher"
_NODE_STATES = {
    ReplicaState.READY: "running",
    ReplicaState.ENDING: "stopping",
    ReplicaState.COMPLETED: "completed",
    ReplicaState.FAILED: "failed",
    ReplicaState.STOPPED: "ended",
    ReplicaState.REMOVED: "ended",
}
_OUTCOMES = {Outcome.COMPLETED: "completed", Outcome.STOPPED: "stopped", Outcome.FAILED: "failed"}


class Unit:
    """One replica of a unit, in its latest generation."""

    def __init__(self, name: UnitName) -> None:
        self.name = name
        self.started = time.monotonic()
        self.address = ""
        self.key = os.urandom(32).hex()
        self.missing: set[str] = set()
        """Nodes of it that are not ready yet."""
        self.ending: UnitEnded | None = None
        self.timer: Timer | None = None


class RunningProgram:
    """A program that runs. Leaving its `with` block stops it; `wait` waits until it is complete.

    Made by `program.launch()`.
    """

    def __init__(self, name: str, specs: Sequence[NodeSpec], packed: PackedProgram) -> None:
        self.name = name
        self._specs = {spec.name: spec for spec in specs}
        self._packed = packed
        self._units: dict[str, list[NodeSpec]] = {}
        for spec in specs:
            self._units.setdefault(spec.unit, []).append(spec)
        self._sizes = {unit: nodes[0].replicas for unit, nodes in self._units.items()}
        self._supervisor = Supervisor([_rule(unit, nodes) for unit, nodes in self._units.items()])
        self._table = Table({spec.name: spec.replicas for spec in specs})
        self._live: dict[tuple[str, int], Unit] = {}
        self._keys: dict[str, str] = {}
        self._subscribers: dict[str, dict[str, UnitName | None]] = {}
        self._records: dict[UnitName, tuple[DeathRecord | None, UnitEnded | None]] = {}
        self._meetings: dict[str, RendezvousAt] = {}
        self._held: list[End] = []
        self._events: deque[str] = deque(maxlen=_MOST_EVENTS)
        self._grace_s = GRACE_S
        self._timer: Timer | None = None
        self._calls: dict[tuple[str, int], NodeCalls] = {}
        self._answers: dict[int, int] = {}
        self._num_questions = 0
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._closing = False
        self._error: ProgramFailed | None = None
        self._session_error: Exception | None = None
        self._started = time.time()
        self._hosting: Hosting
        self._control: ControlServer
        self._client_loop: Loop | None = None
        self._caller: Caller | None = None
        self._view = View(lambda name: self._soon(lambda: self._subscribe(name, _LAUNCHER, None)), lambda: None)

    def begin(self, hosting: Hosting) -> None:
        """Start everything; once."""
        self._hosting = hosting
        self._control = ControlServer(hosting.loop, hosting.folder, hosting.run_id, self)
        self._control.open()
        self._soon(lambda: self._do(self._supervisor.begin(time.monotonic())))

    # For users, from any thread but the loop's

    def __enter__(self) -> RunningProgram:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.stop(self._grace_s if kind is None else min(1.0, self._grace_s))
        if kind is None and self._error:
            self._raise()

    def __repr__(self) -> str:
        return f"<RunningProgram {self.name!r} {self._state()}>"

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the program has ended: its finite nodes have completed, somebody stopped it, or it failed.

        Returns:
            Whether it has ended; False only after `timeout_s` seconds.

        Raises:
            ProgramFailed: a node failed; says which one failed first, how, and what it printed last.
        """
        if not self._over.wait(timeout_s):
            return False
        self._raise()
        return True

    def wait_ready(self, timeout_s: float | None = None) -> bool:
        """Wait until every node is ready, or has completed already; False after `timeout_s` seconds.

        Raises:
            ProgramFailed: a node failed before.
        """
        due = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not self._is_ready() and not self._over.is_set():
                left_s = None if due is None else due - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return False
                self._changed.wait(left_s)
        self._raise()
        return True

    def stop(self, grace_s: float | None = None) -> None:
        """End all nodes and wait until they have; may be called twice, and from several threads.

        Args:
            grace_s: seconds that nodes get after being asked, before they are killed; 5 by default.
                What ends by itself is not waited for any longer than it takes.
        """
        if grace_s is not None and not grace_s >= 0:
            raise ValueError(f"grace_s must be a number of seconds, 0 or more, not {grace_s}")
        if not self._over.is_set():
            self._soon(lambda: self._stop("it was asked to", grace_s))
        self._over.wait()

    def scale(self, name: str, replicas: int) -> None:
        """Change the number of replicas of a node while the program runs; returns when that is under way.

        Raises:
            ValueError: there is no such node, or the number is negative.
        """
        unit = self._unit_of(name)
        self._call(lambda: self._scale(unit, replicas))

    def restart(self, name: str) -> None:
        """Start all replicas of a node anew: those that run are asked to end first.

        Raises:
            ValueError: there is no such node.
        """
        unit = self._unit_of(name)
        self._call(lambda: self._do(self._supervisor.restart(unit, time.monotonic())))

    def client(self, name: str) -> Any:
        """A client of a service, for code outside of the program.

        Raises:
            ValueError: there is no such node, or it has no methods.
        """
        self._unit_of(name)
        methods = self._specs[name].node.methods()
        if methods is None:
            raise ValueError(f"{self._specs[name]} has no methods to call; a Service has")
        return Client(self._own_caller(), name, "any", methods)

    def status(self) -> ProgramStatus:
        """What the program and each of its nodes is doing now."""
        if not self._closing and not self._hosting.loop.is_here:
            self._ask_hosts()
        return self._status_now()

    def logs(self, name: str, lines: int = 100) -> str:
        """The last lines that the replicas of a node printed; empty in threads mode, where all print to one place."""
        self._unit_of(name)
        files = [path for label, path in self.log_files().items() if label.rpartition(".")[0] == name]
        tails: list[str] = []
        for path in files:
            with LogFile(path) as file:
                tails += file.tail(lines)
        return "".join(f"{line}\n" for line in tails)

    def log_files(self) -> Mapping[str, Path]:
        """Where the output of each replica is kept, by its name such as "actor.3"."""
        files: dict[str, Path] = {}
        for spec in self._specs.values():
            for replica in range(self._sizes[spec.unit]):
                path = self._hosting.log_file(spec.unit, replica)
                if path is not None:
                    files[f"{spec.name}.{replica}"] = path
        return files

    def stacks(self, node: str | None = None, timeout_s: float = 2.0) -> Mapping[str, str]:
        """The Python stack of every thread of every node (or of one), by the name of the replica.

        A process whose threads are all stuck in C answers as well; one that is stopped (SIGSTOP) does not.
        """
        if node is not None:
            self._unit_of(node)
        if self._hosting.mode == "threads":
            return stacks.of_threads(list(self._specs), node)
        live = {f"{spec.name}.{index}" for unit, index in list(self._live) for spec in self._units[unit]}
        files = {
            label: path
            for label, path in self.log_files().items()
            if label in live and node in (None, label.rpartition(".")[0])
        }
        return stacks.of_processes(files, self._ask_for_stack, timeout_s)

    # As the target of the hosting, on the loop

    def heard(self, name: UnitName, message: Any) -> None:
        """A unit's host says something."""
        match message:
            case UnitUp():
                unit = self._unit(name)
                if unit:
                    unit.address = message.address
                    self._keys[message.address] = unit.key if self._hosting.mode == "processes" else self._shared_key()
                    meeting = self._meetings.get(name.unit)
                    if meeting:
                        self._hosting.tell(name, meeting)
            case NodeReady():
                self._node_ready(message)
            case UnitEnded():
                unit = self._unit(message.name)
                if unit:
                    unit.ending = message
            case Locate():
                host = self._hosting.host_id(name)
                self._subscribe(message.name, host, name)
            case OfferRendezvous():
                self._rendezvous(message.at)
            case StopProgram():
                self._stop(message.reason, None)
            case HostStatus():
                for calls in message.nodes:
                    self._calls[calls.node, calls.unit.replica] = calls
                with self._changed:
                    self._answers[message.number] = self._answers.get(message.number, 0) + 1
                    self._changed.notify_all()
            case Note():
                self.happened(message.text)
            case _:
                self.happened(f"{name.unit}: an unknown message {message!r}")

    def ended(self, name: UnitName, record: DeathRecord | None, problem: str) -> None:
        """A unit is gone."""
        unit = self._unit(name)
        if unit is None:
            return
        del self._live[name.unit, name.replica]
        if unit.timer:
            unit.timer.cancel()
        self._drop(unit)
        ending = unit.ending
        died = record is not None and not (record.exit_code == 0 and ending is not None)
        ok = ending is not None and ending.failure is None and not died
        cause = _cause(ending, record, problem)
        if not ok:
            self._records[name] = record, ending
            if len(self._records) > _MOST_RECORDS:
                del self._records[next(iter(self._records))]
        instructions = self._supervisor.ended(name.unit, name.replica, name.generation, ok, cause, time.monotonic())
        if not ok and self._is_news(name):
            self.happened(f"{name.unit}.{name.replica} failed: {cause}")
        self._do(instructions)

    def happened(self, text: str) -> None:
        """Something happened that a person should know."""
        self._events.append(f"{time.strftime('%H:%M:%S')} {text}")

    def lost(self, error: Exception) -> None:
        """No processes can be started any more."""
        self._session_error = self._session_error or error
        self._stop(str(error), 0.0)
        for unit in list(self._live.values()):
            if not self._hosting.pid_of(unit.name):  # it waited for its start, which will never come
                self.ended(unit.name, None, str(error))

    # Carrying out instructions, on the loop

    def _do(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Start():
                    self._start(instruction)
                case End():
                    self._end(instruction)
                case Failed():
                    self._failed(instruction)
                case Completed():
                    self.happened("all finite nodes have completed")
        self._release_held()
        self._publish()
        self._arm_timer()
        with self._changed:
            self._changed.notify_all()
        if self._supervisor.done and not self._closing:
            self._closing = True
            threading.Thread(target=self._close, name="ropewalk-program-end", daemon=True).start()

    def _start(self, start: Start) -> None:
        name = UnitName(start.name, start.replica, start.generation)
        specs = self._units[start.name]
        unit = self._live[start.name, start.replica] = Unit(name)
        unit.missing = {spec.name for spec in specs}
        attempts = {
            status.name: status.num_failures for status in self._supervisor.replicas if status.replica == start.replica
        }
        facts = [
            NodeStart(
                spec.name,
                self._sizes[spec.unit],
                attempts.get(start.name, 0),
                spec.checkpoint_s,
                self._packed.num_buffers(spec.name),
            )
            for spec in specs
        ]
        message = StartUnit(
            name=name,
            run_id=self._hosting.run_id,
            program=self.name,
            host_id=self._hosting.host_id(name),
            key=unit.key,
            checkpoints=str(self._checkpoint_folder()),
            main=self._packed.main,
            definitions=self._packed.definitions,
            nodes=facts,
        )
        resources = _largest([spec.resources for spec in specs])
        environment = {key: value for spec in specs for key, value in spec.environment.items()}
        parts = self._packed.parts([spec.name for spec in specs])
        try:
            self._hosting.start(Launch(message, parts, [spec.node for spec in specs], resources, environment))
        except Exception as error:  # the session has ended meanwhile, or no descriptors are left
            problem = f"it could not be started: {error}"
            self._soon(lambda: self.ended(name, None, problem))

    def _end(self, end: End) -> None:
        if self._supervisor.outcome is not Outcome.RUNNING and not self._is_finite(end.name) and self._grace_s:
            self._held.append(end)  # it goes on answering those that are told to end first
            return
        self._ask_to_end(end)

    def _ask_to_end(self, end: End) -> None:
        unit = self._live.get((end.name, end.replica))
        if unit is None or unit.name.generation != end.generation:
            return
        self._hosting.tell(unit.name, StopUnit(unit.name, end.why, self._grace_s))
        unit.timer = self._hosting.loop.call_later(self._grace_s, lambda: self._terminate(unit))

    def _terminate(self, unit: Unit) -> None:
        """Its grace is over."""
        if self._unit(unit.name) is not unit:
            return
        if not self._hosting.signal(unit.name, signal.SIGTERM):
            label = f"{unit.name.unit}.{unit.name.replica}"
            self.happened(
                f"{label} did not end within {self._grace_s:g} s; a thread cannot be killed, so it is left alone"
            )
            self.ended(unit.name, None, "it did not end when it was asked to")
            return
        unit.timer = self._hosting.loop.call_later(
            _TERMINATE_S, lambda: self._hosting.signal(unit.name, signal.SIGKILL)
        )

    def _release_held(self) -> None:
        """Services are asked to end when those that call them have ended, or have used up their time."""
        if not self._held:
            return
        if any(self._is_finite(name) for name, _ in self._live):
            due, ends = self._grace_s, self._held
            self._hosting.loop.call_later(due, lambda: [self._ask_to_end(end) for end in ends])
            if len(ends) < len(self._live):
                return
        ends, self._held = self._held, []
        for end in ends:
            self._ask_to_end(end)

    def _failed(self, failed: Failed) -> None:
        record, ending = self._records.get(UnitName(failed.name, failed.replica, failed.generation), (None, None))
        node = ending.node if ending and ending.node else failed.name
        label = f"{failed.name}.{failed.replica}" if self._sizes.get(failed.name, 1) > 1 else node
        cause = failed.cause.removeprefix(f"{failed.name}.{failed.replica} ")  # as a death record begins
        words = [f"program {self.name!r} failed: node {label} {cause}"]
        if failed.reason:
            words.append(f"It is not started again: {failed.reason}.")
        if len(failed.deaths) > 1:
            words.append("How it ended before: " + "; ".join(failed.deaths[1:]))
        error = ProgramFailed(
            ". ".join(word.rstrip(".") for word in words) + ".",
            node=node,
            replica=failed.replica,
            reason=failed.cause,
            last_output=record.last_output if record else "",
            deaths=failed.deaths,
        )
        if ending and ending.failure:
            where = f"node {label} on {record.host} (pid {record.pid})" if record else f"node {label}"
            error.__cause__ = rebuild_error(ending.failure, where)
        self._error = error
        self.happened(f"the program fails: {label} {cause}")

    def _stop(self, reason: str, grace_s: float | None) -> None:
        if grace_s is not None:
            self._grace_s = grace_s
        again = self._supervisor.outcome is not Outcome.RUNNING
        self._do(self._supervisor.stop(time.monotonic(), reason))
        if again and grace_s is not None:  # somebody is in more of a hurry now
            held, self._held = self._held, []
            for end in held:
                self._ask_to_end(end)
            for unit in list(self._live.values()):
                if unit.timer:
                    unit.timer.cancel()
                unit.timer = self._hosting.loop.call_later(grace_s, lambda unit=unit: self._terminate(unit))

    def _scale(self, unit: str, replicas: int) -> None:
        instructions = self._supervisor.scale(unit, replicas, time.monotonic())
        self._sizes[unit] = replicas
        self._do(instructions)

    # Where services are

    def _node_ready(self, message: NodeReady) -> None:
        unit = self._unit(message.name)
        if unit is None:
            return
        name = unit.name
        if message.target:
            self._table.came_up(message.node, name.replica, name.generation, unit.address, message.target)
        unit.missing.discard(message.node)
        if unit.missing:
            self._publish()
        else:
            self._do(self._supervisor.ready(name.unit, name.replica, name.generation, time.monotonic()))

    def _publish(self) -> None:
        """Tell those who asked what has changed."""
        states = [
            (spec.name, status.replica, status.state, status.generation, status.cause)
            for status in self._supervisor.replicas
            for spec in self._units[status.name]
        ]
        for news in self._table.update(states, stopping=self._supervisor.outcome is not Outcome.RUNNING):
            for host, name in list(self._subscribers.get(news.name, {}).items()):
                self._inform(host, name, news)

    def _subscribe(self, service: str, host: str, name: UnitName | None) -> None:
        self._subscribers.setdefault(service, {})[host] = name
        for news in self._table.about(service):
            self._inform(host, name, news)

    def _inform(self, host: str, name: UnitName | None, news: Placed | Sizes) -> None:
        if isinstance(news, Placed) and news.address:
            token = token_of(self._keys[news.address], host)
            news = Placed(
                news.name, news.replica, news.state, news.address, news.target, token, news.generation, news.cause
            )
        if name is None:
            self._view.hear(news)
        else:
            self._hosting.tell(name, news)

    def _drop(self, unit: Unit) -> None:
        host = self._hosting.host_id(unit.name)
        if self._hosting.mode == "processes":
            for hosts in self._subscribers.values():
                hosts.pop(host, None)
            self._keys.pop(unit.address, None)
            if self._caller and unit.address:
                self._caller.lose(unit.address, "its process has ended")

    def _rendezvous(self, at: RendezvousAt) -> None:
        self._meetings[at.unit] = at
        for (unit, _), live in self._live.items():
            if unit == at.unit and live.name.generation == at.generation:
                self._hosting.tell(live.name, at)

    def _shared_key(self) -> str:
        key: str = self._hosting.key  # type: ignore[attr-defined]
        return key

    # Smaller steps

    def _arm_timer(self) -> None:
        due = self._supervisor.next_due
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self._hosting.loop.call_later(
                max(0.0, due - time.monotonic()), lambda: self._do(self._supervisor.tick(time.monotonic()))
            )

    def _unit(self, name: UnitName) -> Unit | None:
        """The unit of that name, unless its successor has been started."""
        unit = self._live.get((name.unit, name.replica))
        return unit if unit is not None and unit.name == name else None

    def _is_finite(self, unit: str) -> bool:
        return any(spec.node.finite for spec in self._units[unit])

    def _is_ready(self) -> bool:
        over = (ReplicaState.READY, ReplicaState.COMPLETED)
        replicas = self._supervisor.replicas
        return bool(replicas) and all(status.state in over for status in replicas)

    def _is_news(self, name: UnitName) -> bool:
        return any(
            status.name == name.unit and status.replica == name.replica and status.cause
            for status in self._supervisor.replicas
        )

    def _unit_of(self, name: str) -> str:
        spec = self._specs.get(name)
        if spec is None:
            raise ValueError(f"program {self.name!r} has no node {name!r}; it has {', '.join(self._specs)}")
        return spec.unit

    def _checkpoint_folder(self) -> Path:
        return self._hosting.folder / f"checkpoints-{self.name}-{id(self):x}"

    def _state(self) -> str:
        outcome = self._supervisor.outcome
        if outcome is Outcome.RUNNING:
            return "running" if self._is_ready() or any(unit.address for unit in self._live.values()) else "starting"
        return _OUTCOMES[outcome] if self._supervisor.done else "stopping"

    def _ask_hosts(self) -> None:
        """Ask all hosts what their nodes are doing, and give them a moment to answer."""
        number, num_asked = self._call(self._put_question)
        due = time.monotonic() + _STATUS_S
        with self._changed:
            while self._answers.get(number, 0) < num_asked and time.monotonic() < due and not self._closing:
                self._changed.wait(max(0.0, due - time.monotonic()))
            self._answers.pop(number, None)

    def _put_question(self) -> tuple[int, int]:
        self._num_questions += 1
        up = [unit for unit in self._live.values() if unit.address]
        if self._hosting.mode == "threads":
            up = up[:1]  # they share a host
        for unit in up:
            self._hosting.tell(unit.name, AskStatus(self._num_questions))
        return self._num_questions, len(up)

    def _status_now(self) -> ProgramStatus:
        nodes: list[NodeStatus] = []
        now = time.monotonic()
        for status in self._supervisor.replicas:
            unit = self._live.get((status.name, status.replica))
            state = _NODE_STATES.get(status.state)
            if state is None:  # waiting or starting
                again = status.generation > 0 or (status.state is ReplicaState.WAITING and status.generation == 0)
                state = "restarting" if again else status.state.value
            sample = self._hosting.sample_of(unit.name) if unit else None
            for spec in self._units[status.name]:
                calls = self._calls.get((spec.name, status.replica)) if unit else None
                nodes.append(
                    NodeStatus(
                        name=spec.name,
                        replica=status.replica,
                        kind=spec.node.kind,
                        state=state,  # type: ignore[arg-type]
                        generation=max(0, status.generation),
                        pid=self._hosting.pid_of(unit.name) if unit else 0,
                        host=self._hosting.host_of(unit.name) if unit else "",
                        restarts=status.num_failures
                        if status.state is not ReplicaState.FAILED
                        else status.num_failures - 1,
                        uptime_s=now - unit.started if unit else 0.0,
                        memory_bytes=sample.memory_bytes if sample else 0,
                        cpu_s=sample.cpu_s if sample else 0.0,
                        calls_done=calls.num_done if calls else 0,
                        calls_waiting=calls.num_waiting if calls else 0,
                        calls_running=tuple(
                            RunningCall(call.label, call.running_s) for call in (calls.running if calls else [])
                        ),
                        last_cause=status.cause,
                    )
                )
        return ProgramStatus(
            name=self.name,
            run_id=self._hosting.run_id,
            pid=os.getpid(),
            state=self._state(),  # type: ignore[arg-type]
            mode=self._hosting.mode,
            started=self._started,
            nodes=tuple(nodes),
            events=tuple(self._events),
        )

    def _ask_for_stack(self, label: str) -> None:
        name, _, replica = label.rpartition(".")
        unit = self._live.get((self._specs[name].unit, int(replica)))
        if unit:
            self._hosting.signal(unit.name, signal.SIGUSR2)

    def _own_caller(self) -> Caller:
        with self._changed:
            if self._caller is None:
                if self._hosting.mode == "threads":
                    loop = self._hosting.loop
                else:
                    loop = self._client_loop = Loop()
                    loop.start("ropewalk-client", deputies=True)
                self._caller = Caller(loop, self._view, self._hosting.run_id, _LAUNCHER)
            return self._caller

    def _soon(self, call: Callable[[], object]) -> None:
        self._hosting.loop.call_soon(call)

    def _call(self, call: Callable[[], T]) -> T:
        """Have the loop make a call, and return what it returns."""
        if self._over.is_set():
            raise RopewalkError(f"program {self.name!r} has ended ({self._state()})")
        if self._hosting.loop.is_here:
            return call()
        done = threading.Event()
        results: list[T] = []
        errors: list[BaseException] = []

        def make() -> None:
            try:
                results.append(call())
            except BaseException as error:
                errors.append(error)
            finally:
                done.set()

        self._soon(make)
        while not done.wait(0.1):
            if self._over.is_set():
                raise RopewalkError(f"program {self.name!r} has ended ({self._state()})")
        if errors:
            raise errors[0]
        return results[0]

    def _raise(self) -> None:
        if self._session_error and self._supervisor.outcome is not Outcome.COMPLETED:
            raise self._session_error
        if self._error and self._supervisor.done:
            raise self._error

    def _close(self) -> None:
        """Give everything back; in a thread of its own, after the last unit has ended."""
        try:
            self._view.end(f"program {self.name!r} has ended ({self._state()})")
            self._control.close()
            if self._caller:
                self._caller.close(f"program {self.name!r} has ended")
            if self._client_loop:
                self._client_loop.stop()
                self._client_loop.ended.wait(1.0)
            self._hosting.close()
        except Exception:  # whoever waits must be woken in any case
            traceback.print_exc()
        finally:
            self._over.set()
            with self._changed:
                self._changed.notify_all()


def _rule(unit: str, specs: list[NodeSpec]) -> NodeRule:
    first = specs[0]
    return NodeRule(
        name=unit,
        replicas=first.replicas,
        restart=first.restart,
        gang=first.gang,
        essential=first.essential,
        finite=any(spec.node.finite for spec in specs),
    )


def _largest(resources: list[Resources]) -> Resources:
    return max(resources, key=lambda each: each.cpus)


def _cause(ending: UnitEnded | None, record: DeathRecord | None, problem: str) -> str:
    """How a unit ended, as words that follow its name."""
    if ending is not None and ending.failure is not None:
        failure = ending.failure
        kind = failure.type_name.removeprefix("builtins.")
        return f"raised {kind}: {failure.message}" if failure.message else f"raised {kind}"
    if problem:
        return problem
    return record.describe() if record is not None else "it ended"
