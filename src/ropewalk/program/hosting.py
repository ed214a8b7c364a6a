"""Runs units: each in a process of a session, or all as threads of this process.

Both kinds handle the same messages; threads omit what only processes have (signals, samples).
"""

from __future__ import annotations

import abc
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ropewalk.calls.payloads import Handover
from ropewalk.engines.resources import Resources
from ropewalk.processes.deaths import record_of
from ropewalk.processes.left_folders import FolderClaim, sweep
from ropewalk.processes.messages import Exited, NotStarted, Sample, TaskReport
from ropewalk.processes.owner import ProcessSpec, owner_numbers
from ropewalk.processes.session import Session
from ropewalk.program.messages import PROGRAM, StartUnit, StopUnit, UnitEnded, UnitName
from ropewalk.program.node import Node
from ropewalk.program.node_host import NodeHost
from ropewalk.program.packing import FrozenBytes
from ropewalk.settings import Settings
from ropewalk.supervision.failure import DeathRecord
from ropewalk.transport.credentials import create_run_folder
from ropewalk.transport.frames import Part
from ropewalk.transport.link import Link, Received
from ropewalk.transport.loop import Loop
from ropewalk.transport.passport import Passport
from ropewalk.transport.serialization import dumps, loads

ENTRY = "ropewalk.program.node_process:main"


@dataclass(frozen=True, slots=True)
class Launch:
    """One unit to start."""

    start: StartUnit
    bundles: list[FrozenBytes]
    nodes: list[Node[Any]]
    resources: Resources
    environment: Mapping[str, str]
    preload: tuple[str, ...] = ()
    beside: str = ""
    """Units with the same value share a host."""


class Target(Protocol):
    """Is told what happens to units; everything is called on the loop's thread."""

    def heard(self, name: UnitName, message: Any, parts: Sequence[Part] = ()) -> None:
        """A unit's host sent a message."""

    def ended(self, name: UnitName, record: DeathRecord | None, problem: str) -> None:
        """A unit has ended; with the record of its process's death, or the reason why it could not be started."""

    def leaving(self, name: UnitName, why: str) -> None:
        """The host of a unit is about to be taken away."""

    def happened(self, text: str, kind: str = "") -> None:
        """Something happened that a user should know; `kind` is as in `EventView`."""

    def lost(self, error: Exception) -> None:
        """No more units can be started."""


class Hosting(abc.ABC):
    """Starts and ends units."""

    mode: str
    shares_host = False
    """Whether all units share one host, which stays when they end."""
    handover: Handover | None = None
    """Passes objects in calls without copying them."""
    loop: Loop
    run_id: str
    folder: Path
    passport: Passport | None = None
    """The launcher's addresses and credentials, in a run of several hosts."""

    @abc.abstractmethod
    def start(self, launch: Launch) -> None:
        """Start a unit; from the loop's thread."""

    @abc.abstractmethod
    def tell(self, name: UnitName, message: msgspec.Struct, parts: Sequence[Part] = ()) -> None:
        """Send a message to a unit's host; ignored if the unit is gone."""

    @abc.abstractmethod
    def signal(self, name: UnitName, number: int) -> bool:
        """Send a signal to a unit's process; False where units have none."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release everything, after the last unit has ended; not from the loop's thread."""

    def ways(self) -> tuple[str, ...]:
        """Descriptions of hosts that reach each other only through a relay."""
        return ()

    def host_id(self, name: UnitName) -> str:
        """The host id of a unit's host."""
        return f"{name.unit}.{name.replica}#{name.generation}"

    @abc.abstractmethod
    def key_of(self, name: UnitName) -> str:
        """The key that makes the tokens for a unit's host."""

    def fingerprint_of(self, name: UnitName) -> str:
        """Fingerprint of the certificate of a unit's process; empty if it has none."""
        return ""

    def pid_of(self, name: UnitName) -> int:
        """Process ID of a unit; 0 before it has a process."""
        return os.getpid()

    def host_of(self, name: UnitName) -> str:
        """The machine on which a unit runs."""
        return os.uname().nodename

    @property
    def has_queued_jobs(self) -> bool:
        """Whether jobs for its processes wait in the queue of a cluster manager."""
        return False

    def sample_of(self, name: UnitName) -> Sample | None:
        """The last measured resource use of a unit's process."""
        return None

    def silence_of(self, name: UnitName) -> float:
        """Seconds since the resource use of a unit's process was measured."""
        return 0.0

    def log_file(self, unit: str, replica: int) -> Path | None:
        """The file with a replica's output."""
        return None

    def show(self, name: UnitName, host: str, text: str) -> None:
        """Print text for a unit that is gone, as if it had printed it itself; whole lines."""
        sys.stderr.write(text)

    def when_shown(self, call: Callable[[], object]) -> None:
        """Have a call made when all output of units so far has been shown; from the loop's thread."""
        call()

    def output_so_far(self) -> Callable[[], None]:
        """Return a function that waits until the output until now has been shown; see `OutputRelay.so_far`."""
        return lambda: None


class ProcessHosting(Hosting):
    """A process for each unit, leased from a session."""

    mode = "processes"

    def __init__(self, session: Session, target: Target, run: str = "") -> None:
        """Lease the session; `run` is given to the processes, see `ProcessSpec.run`.

        Raises:
            PoolClosed: the session has ended.
            StartFailed: no agent could be requested.
        """
        session.lease()
        self._session = session
        self._number = next(owner_numbers)
        self._target = target
        self._run = run
        self._released = False
        self._ids: dict[UnitName, str] = {}
        self._names: dict[str, UnitName] = {}
        self._launches: dict[str, Launch] = {}
        self._links: dict[UnitName, Link] = {}
        self._hosts: dict[str, str] = {}
        """Host names of the units that have come up, by host id: the session forgets them when they are gone."""
        self._keys: dict[UnitName, str] = {}
        self._blobs: set[str] = set()
        """Ids of the blobs that hosts hold for units."""
        self._unwanted: set[UnitName] = set()
        """Units that were told to end before they were up."""
        self.loop = session.loop
        self.run_id = session.run_id
        self.folder = session.folder
        self.passport = session.passport

    def start(self, launch: Launch) -> None:
        name = launch.start.name
        spec = ProcessSpec(
            group=name.unit,
            rank=name.replica,
            entry=ENTRY,
            codec=PROGRAM,
            resources=launch.resources,
            environment=launch.environment,
            preload=launch.preload,
            beside=launch.beside,
            run=self._run,
            output=self._output_name(name.unit, name.replica),
        )
        try:
            id = self._session.processes.start(spec, self)
        except BaseException:
            self._keys.pop(name, None)
            raise
        self._ids[name], self._names[id], self._launches[id] = id, name, launch

    def tell(self, name: UnitName, message: msgspec.Struct, parts: Sequence[Part] = ()) -> None:
        link = self._links.get(name)
        if link:
            link.send_if_open(message, parts)
        elif isinstance(message, StopUnit):
            self._unwanted.add(name)
            self.signal(name, signal.SIGKILL)

    def signal(self, name: UnitName, number: int) -> bool:
        id = self._ids.get(name)
        if id:
            self._session.processes.signal(id, number)
        return True

    def close(self) -> None:
        if not self._released:
            self._released = True
            for blob in self._blobs:
                self._session.blobs.drop(blob, self)
            self._session.release()

    def key_of(self, name: UnitName) -> str:
        return self._keys.setdefault(name, os.urandom(32).hex())

    def fingerprint_of(self, name: UnitName) -> str:
        return self._session.processes.fingerprint_of(self._ids.get(name, ""))

    def pid_of(self, name: UnitName) -> int:
        return self._session.processes.pid_of(self._ids.get(name, ""))

    def host_of(self, name: UnitName) -> str:
        return self._session.processes.host_of(self._ids.get(name, ""))

    def ways(self) -> tuple[str, ...]:
        return tuple(map(str, self._session.ways()))

    @property
    def has_queued_jobs(self) -> bool:
        return self._session.has_queued_jobs

    def sample_of(self, name: UnitName) -> Sample | None:
        return self._session.processes.sample_of(self._ids.get(name, ""))

    def silence_of(self, name: UnitName) -> float:
        return self._session.processes.silence_of(self._ids.get(name, ""))

    def log_file(self, unit: str, replica: int) -> Path | None:
        return self._session.output_file(self._output_name(unit, replica))

    def _output_name(self, unit: str, replica: int) -> str:
        """Return the name of a replica's output, which those of other programs of the session do not have."""
        return f"{self._session.output_group(self._number, unit)}.{replica}"

    def show(self, name: UnitName, host: str, text: str) -> None:
        self._session.output.show(f"{name.unit} {name.replica}@{host}", text)

    def when_shown(self, call: Callable[[], object]) -> None:
        self._session.output.when_shown(call)

    def output_so_far(self) -> Callable[[], None]:
        return self._session.output.so_far()

    # As the owner of processes, on the loop

    def on_link(self, id: str, link: Link) -> None:
        launch = self._launches.pop(id, None)
        name = self._names.get(id)
        if launch is None or name is None or name in self._unwanted:
            link.close()
            return
        self._links[name] = link
        self._hosts[id] = self._session.processes.host_of(id)
        for bundle in launch.bundles:
            if bundle.blob and bundle.constant:
                self._blobs.add(bundle.blob.id)
                self._session.blobs.provide(id, bundle.blob, bundle.constant.fd)
        link.send_if_open(launch.start, [part for bundle in launch.bundles for part in bundle.parts])

    def on_message(self, id: str, received: Received) -> None:
        name = self._names.get(id)
        if name:
            if isinstance(received.message, UnitEnded) and received.message.failure is None:
                self._session.processes.takes_leave(id)
            self._target.heard(name, received.message, received.parts)

    def on_report(self, id: str, report: TaskReport) -> None:
        pass  # only pools use this

    def on_exited(self, id: str, exited: Exited, host_lost: bool) -> None:
        host = self._hosts.get(id) or self._session.processes.host_of(id)
        name = self._forget(id)
        if name is None:
            return
        label = f"{name.unit}.{name.replica}"
        if not host and not host_lost:  # what was lost with a host before it was up was not here
            host = os.uname().nodename
        record = record_of(exited, name=label, host=host)
        self._target.ended(name, record, f"went with its host: {exited.ended_by}" if host_lost else "")

    def on_not_started(self, id: str, failure: NotStarted) -> None:
        name = self._forget(id)
        if name:
            self._target.ended(name, None, f"could not be started: {failure.reason}")

    def on_draining(self, id: str, why: str, left_s: float) -> None:
        name = self._names.get(id)
        if name:
            self._target.leaving(name, why)

    def on_event(self, text: str, kind: str = "") -> None:
        self._target.happened(text, kind)

    def on_failed(self, error: Exception) -> None:
        if not self._released:
            self._target.lost(error)

    def _forget(self, id: str) -> UnitName | None:
        name = self._names.pop(id, None)
        self._launches.pop(id, None)
        self._hosts.pop(id, None)
        if name:
            self._ids.pop(name, None)
            self._keys.pop(name, None)
            self._unwanted.discard(name)
            self._links.pop(name, None)
        return name


class ThreadHosting(Hosting):
    """All units as threads of this process, for debugging.

    Args:
        target: is told what happens to units.
        settings: include the location of the run folder.
        copy: whether to pickle nodes, arguments and results as between processes, or to pass them on as they are.
    """

    mode = "threads"
    shares_host = True

    def __init__(self, target: Target, settings: Settings, *, copy: bool) -> None:
        self._target = target
        self.handover = None if copy else Handover()
        self.run_id = os.urandom(8).hex()
        self.folder = create_run_folder(settings.run_folder)
        self._claim = FolderClaim(self.folder)
        sweep([self.folder.parent])
        self._key = os.urandom(32).hex()
        self._host = NodeHost(
            str(self.folder), "threads.sock", self.run_id, "threads", self._key, self._said, self.handover
        )
        self.loop = self._host.loop
        self.loop.start("ropewalk-threads")

    def start(self, launch: Launch) -> None:
        nodes = launch.nodes
        if not self.handover:
            payload = dumps(nodes, what="nodes")
            nodes = loads(payload.pickle, [memoryview(bytearray(buffer)) for buffer in payload.buffers])
        start = launch.start
        for name, value in launch.environment.items():
            os.environ.setdefault(name, value)
        try:
            unit = self._host.prepare(start, nodes)
        except Exception as error:
            traceback.print_exception(error, file=sys.stderr)
            problem = f"could not be started: {error!r}"
            self.loop.call_soon(lambda: self._target.ended(start.name, None, problem))
            return
        name = f"{start.name.unit}.{start.name.replica}"
        threading.Thread(target=self._host.run_unit, args=(unit,), name=name, daemon=True).start()

    def tell(self, name: UnitName, message: msgspec.Struct, parts: Sequence[Part] = ()) -> None:
        self.loop.call_soon(lambda: self._host.hear(message, list(parts)))

    def signal(self, name: UnitName, number: int) -> bool:
        return False

    def host_id(self, name: UnitName) -> str:
        return "threads"

    def key_of(self, name: UnitName) -> str:
        return self._key

    def close(self) -> None:
        self._host.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._claim.close()

    def _said(self, message: Any, parts: Sequence[Part] = ()) -> None:
        self.loop.call_soon(lambda: self._hear(message, list(parts)))

    def _hear(self, message: Any, parts: list[Part]) -> None:
        name: UnitName = getattr(message, "name", None)  # type: ignore[assignment]
        self._target.heard(name if isinstance(name, UnitName) else UnitName("", 0, 0), message, parts)
        if isinstance(message, UnitEnded):
            self._target.ended(message.name, None, "")
