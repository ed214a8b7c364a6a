"""The conductor of a running program: passes events to the supervisor and carries out its instructions. On the loop.

hosting ──heard, ended──▶ Conductor ──▶ Supervisor (decides)
                              │ Start ─▶ hosting     EndReplica ─▶ Endings     changes ─▶ Announcer ─▶ hosts
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ropewalk.control.event_log import EventLog
from ropewalk.errors import FailedForGood, ProgramFailed
from ropewalk.processes.notifier import Notifier
from ropewalk.processes.output_marks import mark_end
from ropewalk.program import failure_lines
from ropewalk.program.announcer import Announcer
from ropewalk.program.circles import Circles
from ropewalk.program.directory import DirectoryView
from ropewalk.program.elastic import ElasticGroups
from ropewalk.program.endings import Endings
from ropewalk.program.failure_lines import DeathLines, FailureLines
from ropewalk.program.host_reports import HostReports
from ropewalk.program.hosting import Hosting, Launch
from ropewalk.program.instructions import (
    Completed,
    EndReplica,
    Failed,
    Instruction,
    ProgramOutcome,
    ReplicaState,
    Start,
)
from ropewalk.program.kept_folder import KeptFolder
from ropewalk.program.messages import (
    CallsHeldUp,
    FindState,
    HostStatus,
    Locate,
    NodeReady,
    NodeStart,
    Note,
    OfferRendezvous,
    ReadState,
    SaveState,
    SetStateAside,
    StartUnit,
    StateAnswer,
    StopProgram,
    UnitEnded,
    UnitName,
    UnitUp,
    WaitsAre,
    WaitsForStop,
)
from ropewalk.program.node import NodeSpec
from ropewalk.program.packing import PackedProgram
from ropewalk.program.rank_failures import RankFailures
from ropewalk.program.rights import may_say
from ropewalk.program.state_archive import StateArchive
from ropewalk.program.supervisor import Supervisor
from ropewalk.program.units import UnitReplica, Units
from ropewalk.supervision.failure import DeathRecord
from ropewalk.tracking.observed_run import UNOBSERVED, ObservedRun
from ropewalk.transport.failures import rebuild_error
from ropewalk.transport.frames import Part
from ropewalk.transport.loop import Timer

logger = logging.getLogger(__name__)

_HINT_S = 10.0
"""Seconds after which a program that only waits for services reports it."""
_FOR_GOOD = f"{FailedForGood.__module__}.{FailedForGood.__qualname__}"
_UNTOLD = (ReplicaState.STARTING, ReplicaState.READY)
"""The states in which the end of a replica was not asked for."""
_AGAIN = (ReplicaState.WAITING, ReplicaState.STARTING)
"""The states of a replica that has failed and is started again."""
_MOST_EVENTS = 200
_MOST_RECORDS = 1000


class Conductor:
    """Runs a program; all methods are called on the hosting's loop, unless stated otherwise.

    Args:
        name: the program's name.
        specs: its nodes.
        packed: its nodes, ready to be sent.
        view: the launcher's own directory.
        over: called once when everything has ended; must not block.
        watched: is told what happens.
    """

    def __init__(
        self,
        name: str,
        specs: Sequence[NodeSpec],
        packed: PackedProgram,
        view: DirectoryView,
        over: Callable[[], object],
        watched: ObservedRun = UNOBSERVED,
        states: KeptFolder | None = None,
    ) -> None:
        self.name = name
        self.units = Units(specs)
        self.supervisor = Supervisor(self.units.rules())
        self.announcer = Announcer(self.units, view)
        self.endings = Endings(self.units, self._overdue, self._abandoned)
        self.circles = Circles(self.units, self.happened)
        self.elastic = ElasticGroups(self.units, self.scale, self.happened)
        self.death_lines = DeathLines(self.units, self.supervisor, logger)
        self.failure_lines = FailureLines(self.units, self.supervisor)
        self.events: deque[str] = deque(maxlen=_MOST_EVENTS)
        """What a user should know, each with its time, for `ProgramStatus`."""
        self.log = EventLog()
        """The same, with starts and changes of size, for the page."""
        self.last_failure = ""
        """The replica that failed last, and its cause."""
        self.error: ProgramFailed | None = None
        self.session_error: Exception | None = None
        self.changed = Notifier()
        """Notified after each change, for waiting threads."""
        self.reports = HostReports(self.units, self.changed)
        self.hosting: Hosting
        self.checkpoints: Path
        """The folder of its checkpoints."""
        self.states: StateArchive
        self._packed = packed
        self._call_when_over = over
        self._watched = watched
        self._states = states
        self._is_over = False
        self._ranks = RankFailures()
        self._records: dict[UnitName, tuple[DeathRecord | None, UnitEnded | None]] = {}
        self._told_awaited = False
        self._timer: Timer | None = None

    def begin(self, hosting: Hosting) -> None:
        """Start everything; from any thread, once."""
        self.hosting = hosting
        # Random, so that another program of this session never gets the states of this one.
        of_this_run = hosting.folder / f"checkpoints-{os.urandom(8).hex()}"
        self.checkpoints = self._states.path if self._states else of_this_run
        self.states = StateArchive(self.checkpoints, self._answer)
        self.announcer.begin(hosting)
        self.endings.begin(hosting)
        self.circles.begin(hosting)
        self.elastic.begin(hosting)
        self.death_lines.begin(hosting)
        self.failure_lines.begin(hosting)
        self.reports.begin(hosting)
        hosting.loop.call_soon(lambda: self._do(self.supervisor.begin(time.monotonic())))

    @property
    def is_ready(self) -> bool:
        """Whether every replica is ready, or has ended and is not restarted; from any thread."""
        return self.supervisor.is_ready

    # Requests of the user

    def stop(self, reason: str, grace_s: float | None) -> None:
        """End everything; a second call may shorten the grace."""
        if self.supervisor.outcome is ProgramOutcome.RUNNING:
            if grace_s is not None:
                self.endings.set_grace(grace_s)
            self._do(self.supervisor.stop(time.monotonic(), reason))
        elif grace_s is not None and grace_s < self.endings.grace_s:
            self.endings.hurry(grace_s)

    def scale(self, unit: str, replicas: int) -> None:
        """Change the number of replicas of a unit."""
        running = self.supervisor.outcome is ProgramOutcome.RUNNING
        instructions = self.supervisor.scale(unit, replicas, time.monotonic())
        if running:  # otherwise nothing was changed
            self.log.add(f"{unit} is scaled from {self.units.sizes[unit]} to {replicas}", "scale")
            self.units.sizes[unit] = replicas
        self._do(instructions, patient=True)

    def restart(self, unit: str, replica: int | None = None) -> None:
        """Restart all replicas of a unit, or one."""
        self._do(self.supervisor.restart(unit, time.monotonic(), replica))

    # Messages of hosts (the target of the hosting)

    def heard(self, name: UnitName, message: Any, parts: Sequence[Part] = ()) -> None:
        """A unit's host sent a message."""
        nodes = {spec.name for spec in self.units.nodes.get(name.unit, ())}
        if not self.hosting.shares_host and not may_say(message, name, nodes):
            self.happened(f"{name.unit}.{name.replica} said {type(message).__name__} of another; it was not acted on")
            return
        match message:
            case UnitUp():
                unit = self.units.find(message.name)
                if unit:
                    unit.address, unit.gpus = message.address, message.gpus
                    self.announcer.host_up(unit)
                    self.elastic.came_up(unit.name)
            case NodeReady():
                self._node_ready(message)
            case UnitEnded():
                unit = self.units.find(message.name)
                if unit:
                    unit.ending, unit.reported = message, time.monotonic()
            case CallsHeldUp():
                self.circles.held_up(message.name)
            case WaitsAre():
                self.circles.answered(message.name, message.number, message.lanes)
            case WaitsForStop():
                name = message.name
                if self.units.find(name):
                    self._do(self.supervisor.waits_for_stop(*_start_of(name), time.monotonic()))
            case Locate():
                self.announcer.subscribe(message.name, self.hosting.host_id(name), name)
            case OfferRendezvous():
                self.announcer.rendezvous(message.at)
            case StopProgram():
                self.stop(message.reason, None)
            case HostStatus():
                self.reports.heard(name, message)
            case Note():
                self.happened(message.text)
            case SaveState() | FindState() | ReadState() | SetStateAside():
                if self.units.find(message.name):  # otherwise the message is a predecessor's
                    self.states.hear(message, parts)
            case _:
                self.happened(f"{name.unit}: an unknown message {message!r}")

    def ended(self, name: UnitName, record: DeathRecord | None, problem: str) -> None:
        """A unit has ended."""
        unit = self.units.find(name)
        if unit is None:
            return
        is_rank = self.units.is_rank_group(name.unit)
        if is_rank and not problem and unit.ending and unit.ending.failure and self._state_of(name) in _UNTOLD:
            others = sum(each.name.unit == name.unit for each in self.units)
            self._ranks.hold(self.hosting.loop, unit, others, lambda: self._has_ended(unit, record, problem))
            return
        self._has_ended(unit, record, problem)
        if is_rank:
            self._ranks.release(name)

    def _has_ended(self, unit: UnitReplica, record: DeathRecord | None, problem: str) -> None:
        name = unit.name
        if self.units.find(name) is not unit:
            return  # a rank whose end was held, and which was lost with the session meanwhile
        self.units.end(unit)
        if unit.timer:
            unit.timer.cancel()
        self.announcer.host_gone(unit, is_lost=bool(problem))
        ending = unit.ending
        died = record is not None and (record.exit_code != 0 or ending is None)
        ok = ending is not None and ending.failure is None and not died and not problem
        cause = failure_lines.cause(ending, record, problem)
        if not ok:
            self._records[name] = record, ending
            if len(self._records) > _MOST_RECORDS:
                del self._records[next(iter(self._records))]
        before, now = self.supervisor.replica(name.unit, name.replica), time.monotonic()
        was = before.state if before else None
        could_start = not problem or record is not None
        if not could_start and was is ReplicaState.STARTING:
            self.elastic.cannot_start(name, problem)
        for_good = ending is not None and ending.failure is not None and ending.failure.type_name == _FOR_GOOD
        instructions = self.supervisor.ended(
            name.unit, name.replica, name.generation, ok, cause, now, for_good=for_good
        )
        after = self.supervisor.replica(name.unit, name.replica)
        has_failed = before is not None and after is not None and after.num_failures > before.num_failures
        if after is not None and after.cause == cause:
            self.happened(f"{unit.label} {cause}", "" if ok else "death", self._shown(name), record if died else None)
            self.last_failure = self.last_failure if ok else f"{unit.label} {cause}"
        if ending and ending.failure:
            is_told = has_failed and self.death_lines.are_told
            self.failure_lines.failed(unit, ending.failure, record, follows=was not in _UNTOLD, is_told=is_told)
        if after and has_failed:
            self.death_lines.failed(unit, record, after.cause, now)
        if after and after.state in _AGAIN:
            mark_end(self.hosting.log_file(name.unit, name.replica), f"{unit.label} {cause}; it starts again")
        self._do(instructions)
        if not ok and could_start and was in _UNTOLD and self._state_of(name) in _AGAIN:
            self.elastic.restarts(name.unit)
        if ok and self._services_awaited():
            self.hosting.loop.call_later(_HINT_S, self._tell_what_is_awaited)

    def _state_of(self, name: UnitName) -> ReplicaState | None:
        status = self.supervisor.replica(name.unit, name.replica)
        return status.state if status else None

    def _services_awaited(self) -> list[str]:
        """The services whose own work the program still waits for, if it waits for nothing else."""
        awaited = self.supervisor.awaited_nodes
        if self.supervisor.outcome is not ProgramOutcome.RUNNING or any(self.units.is_worker(name) for name in awaited):
            return []
        return sorted(awaited)

    def _tell_what_is_awaited(self) -> None:
        """Report the services that a program waits for after its workers have completed, as it might seem to hang."""
        services = self._services_awaited()
        if services and not self._told_awaited:
            self._told_awaited = True
            text = (
                f"its workers have completed, and it waits until run() of {', '.join(services)} returns; what has no "
                "end of its own can wait in rw.wait_for_stop(), or be added with essential=False"
            )
            self.happened(text)
            logger.warning("program %r: %s", self.name, text)

    def leaving(self, name: UnitName, why: str) -> None:
        """The host of a unit is about to be taken away: the unit is restarted on another host."""
        unit = self.units.find(name)
        if unit and self.supervisor.outcome is ProgramOutcome.RUNNING:
            self.happened(
                f"{unit.label} moves to another host: {self.hosting.host_of(name)} is taken away ({why})",
                "preemption",
                self._shown(name),
            )
            # With its whole grace: it is not being ended because a peer has died.
            self._do(
                self.supervisor.leaves(name.unit, name.replica, name.generation, why, time.monotonic()), patient=True
            )

    def happened(self, text: str, kind: str = "", process: str = "", death: DeathRecord | None = None) -> None:
        """Something happened that a user should know; `kind` and `process` are as in `EventView`."""
        self.events.append(f"{time.strftime('%H:%M:%S')} {text}")
        self.log.add(text, kind, process)
        if death is None:
            self._watched.event("event", text)
        else:
            self._watched.death(text, death)

    def lost(self, error: Exception) -> None:
        """No more processes can be started."""
        self.session_error = self.session_error or error
        self.stop(str(error), 0.0)
        for unit in self.units:
            if not self.hosting.pid_of(unit.name):  # it waited for a start that will never come
                self.ended(unit.name, None, str(error))

    def _node_ready(self, message: NodeReady) -> None:
        unit = self.units.find(message.name)
        if unit is None:
            return
        self.announcer.node_ready(unit, message)
        unit.missing.discard(message.node)
        name = unit.name
        if unit.missing:
            self._do([])
        else:
            self._do(self.supervisor.ready(*_start_of(name), time.monotonic()))

    # Instructions

    def _do(self, instructions: list[Instruction], *, patient: bool = False) -> None:
        of_program = self.supervisor.outcome is not ProgramOutcome.RUNNING
        for instruction in instructions:
            match instruction:
                case Start():
                    self._start(instruction)
                case EndReplica():
                    self.endings.end(instruction, of_program=of_program, patient=patient or of_program)
                case Failed():
                    self._failed(instruction)
                case Completed():
                    self.happened("all finite nodes have completed")
        self.endings.settle()
        self.announcer.publish(self.supervisor)
        self._arm_timer()
        self.changed.ring()
        if self.supervisor.done and not self._is_over:
            self._is_over = True
            self.death_lines.close()
            self._call_when_over()

    def _shown(self, name: UnitName) -> str:
        """The name of a unit's process in views: that of its first node."""
        return f"{self.units.nodes[name.unit][0].name}.{name.replica}"

    def _start(self, start: Start) -> None:
        name = UnitName(start.name, start.replica, start.generation)
        if start.generation:
            self.log.add(f"{name.unit}.{name.replica} starts again", "restart", self._shown(name))
        self.units.begin(name)
        specs = self.units.nodes[name.unit]
        status = self.supervisor.replica(name.unit, name.replica)
        attempt = status.num_failures if status else 0
        size = self.units.sizes[name.unit]
        bundles = self._packed.bundles([spec.name for spec in specs])
        message = StartUnit(
            name=name,
            run_id=self.hosting.run_id,
            program=self.name,
            host_id=self.hosting.host_id(name),
            key=self.hosting.key_of(name),
            checkpoints="" if self.hosting.passport else str(self.checkpoints),
            main=self._packed.main,
            definitions=self._packed.definitions,
            nodes=[
                NodeStart(spec.name, size, attempt, spec.checkpoint_s, self._packed.num_buffers(spec.name))
                for spec in specs
            ],
            blobs={at: bundle.blob for at, bundle in enumerate(bundles) if bundle.blob},
        )
        launch = Launch(
            message,
            bundles,
            [spec.node for spec in specs],
            self.units.resources(name.unit),
            self.units.environment(name.unit),
            self.units.preload(name.unit),
            specs[0].host and f"{specs[0].host}.{name.replica}",
        )
        try:
            self.hosting.start(launch)
        except Exception as error:  # the session has ended meanwhile, or no descriptors are left
            problem = f"could not be started: {error}"
            self.hosting.loop.call_soon(lambda: self.ended(name, None, problem))

    def _answer(self, name: UnitName, answer: StateAnswer, parts: Sequence[Part]) -> None:
        self.hosting.loop.call_soon(lambda: self.hosting.tell(name, answer, parts))

    def _overdue(self, unit: UnitReplica, grace_s: float) -> None:
        """Report a unit that did not end within its grace, with what it is doing."""
        threads = self.hosting.shares_host
        end = "a thread cannot be killed, and it is left alone" if threads else "its process is ended"
        text = f"{unit.label} has not ended {grace_s:g} s after it was asked to: {self.reports.occupation(unit)}; {end}"
        self.happened(text)
        if self.supervisor.outcome is not ProgramOutcome.RUNNING and grace_s:  # with a grace of 0 it had no time to end
            logger.warning("program %r: %s", self.name, text)

    def _abandoned(self, unit: UnitReplica, why: str) -> None:
        self.ended(unit.name, None, why)

    def _failed(self, failed: Failed) -> None:
        record, ending = self._records.get(UnitName(failed.name, failed.replica, failed.generation), (None, None))
        node = ending.node if ending and ending.node else failed.name
        label = f"{node}.{failed.replica}" if self.units.sizes.get(failed.name, 1) > 1 else node
        words = [f"program {self.name!r} failed: node {label} {failed.cause}"]
        if failed.reason:
            words.append(f"It is not started again: {failed.reason}")
        if len(failed.deaths) > 1:
            words.append("It failed again after that: " + "; ".join(failed.deaths[1:]))
        error = ProgramFailed(
            " ".join(f"{word.rstrip('.')}." for word in words),
            node=node,
            replica=failed.replica,
            reason=failed.cause,
            last_output=record.last_output if record else "",
            deaths=failed.deaths,
            exit_code=record.shell_code if record else 1,
        )
        if ending and ending.failure:
            where = f"node {label} on {record.host} (pid {record.pid})" if record else f"node {label}"
            error.__cause__ = rebuild_error(ending.failure, where)
        self.error = error
        self.happened(f"the program fails: {label} {failed.cause}")

    def _arm_timer(self) -> None:
        due = self.supervisor.next_due
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self.hosting.loop.call_later(
                max(0.0, due - time.monotonic()), lambda: self._do(self.supervisor.tick(time.monotonic()))
            )


def _start_of(name: UnitName) -> tuple[str, int, int]:
    """The key of a unit's start in the supervisor."""
    return name.unit, name.replica, name.generation
