"""Placement of processes that have no host yet: on agents that are up, or kept until there are some.

asked for ─▶ prepared by the engine ─▶ placed on an agent ─▶ started there
                    │                        └ none has room: waits; agents are asked for a moment later
                    └ more than the engine's hosts will ever hold: refused, together with others like it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ropewalk.engines.resources import Resources
from ropewalk.errors import EngineError
from ropewalk.processes.agent_record import AgentRecord
from ropewalk.processes.fleet import Fleet
from ropewalk.processes.joined import JoinedAgent
from ropewalk.processes.managed_process import ManagedProcess
from ropewalk.processes.messages import NotStarted
from ropewalk.processes.owner import Owner
from ropewalk.transport.loop import Loop

_GATHER_S = 0.02
"""Processes that are asked for within this time (seconds) share the agents that they need."""
_GATHERINGS = 25
"""While more processes are asked for, others wait for them, but at most this many times `_GATHER_S`."""


class Placement:
    """Places processes. Everything is called on the loop's thread, `ask` and `leaves` on any.

    Args:
        processes: all processes of the session, by id; changed by others.
        hosts: the fleet on which they are placed.
        loop: loop of the session.
        begin: starts a process on its agent.
        refuse: tells the owner of a process that it cannot be had.
    """

    def __init__(
        self,
        processes: Mapping[str, ManagedProcess],
        hosts: Fleet | JoinedAgent,
        loop: Loop,
        begin: Callable[[str, ManagedProcess], object],
        refuse: Callable[[NotStarted], object],
    ) -> None:
        self._processes = processes
        self._hosts = hosts
        self._loop = loop
        self._begin = begin
        self._refuse = refuse
        self._waiting: list[str] = []
        self._too_many: list[str] = []
        """Processes of an owner that asks for more than the engine's hosts have room for."""
        self._wanting = False
        self._num_askers = 0
        """How many threads are asking for several processes."""

    def hold(self) -> None:
        """Ask for no agents until `go_on`: more processes are asked for."""
        self._num_askers += 1

    def go_on(self) -> None:
        """Undo one `hold`."""
        self._num_askers -= 1

    def ask(self, id: str, process: ManagedProcess) -> None:
        """Ask for a process; its resources have been checked by the engine when it is placed."""
        self._hosts.prepare(process.spec.resources, lambda problem: self._prepared(id, problem))

    def place_waiting(self) -> None:
        """Place waiting processes: there may be room now."""
        waiting, self._waiting = self._waiting, []
        for id in waiting:
            self._place(id)
        self._want_soon()

    def leaves(self, id: str) -> None:
        """Note that a process ends when its work is done: another one may be placed where it is."""
        process = self._processes.get(id)
        if process:
            process.is_leaving = True  # at once: one that is asked for next is counted as soon as it is known
            self._loop.call_soon(lambda: self._free_place_of(id, process))

    def _free_place_of(self, id: str, process: ManagedProcess) -> None:
        if process.is_leaving and process.agent and id in process.agent.processes:
            process.agent.leaving.add(id)

    def _prepared(self, id: str, problem: EngineError | None) -> None:
        process = self._processes.get(id)
        if process is None:
            return
        if problem:
            self._refuse(NotStarted(id, str(problem), by_engine=True))
            return
        if self._hosts.refusal(partial(self._asked_by, process.owner)):
            self._too_many.append(id)  # the refusal says how many they are, when all have been asked for
        else:
            self._place(id)
        self._want_soon()

    def _refuse_too_many(self) -> None:
        """Refuse processes for which there will never be room, the first ones first, until the others have some."""
        too_many, self._too_many = self._too_many, []
        processes = {id: process for id in too_many if (process := self._processes.get(id))}
        asked = {id: self._hosts.refusal(partial(self._asked_by, process.owner)) for id, process in processes.items()}
        for id, process in processes.items():
            if self._hosts.refusal(partial(self._asked_by, process.owner)):
                self._refuse(NotStarted(id, asked[id], limit=True))
            else:
                self._place(id)

    def _asked_by(self, owner: Owner) -> list[Resources]:
        """Return what an owner wants to have at the same time. Of two with the same name one replaces the other."""
        all = list(self._processes.values())
        named = {each.spec.name: each.spec for each in all if each.owner is owner and not each.is_leaving}
        return [spec.resources for spec in named.values() if not spec.agent]

    def _place(self, id: str) -> None:
        process = self._processes.get(id)
        if process is None:
            return
        spec = process.spec
        if spec.agent:
            agent = self._hosts.agents.get(spec.agent)
            if agent is None:
                self._refuse(NotStarted(id, f"{spec.agent} is gone, whose host it should serve"))
                return
            agent.services.add(id)
            agent.idle_since = None
        else:
            agent = self._hosts.place(id, spec.resources, len(self._processes), self._beside(process))
            if agent is None:
                self._waiting.append(id)
                return
        process.agent = agent
        self._free_place_of(id, process)
        self._begin(id, process)

    def _beside(self, process: ManagedProcess) -> AgentRecord | None:
        """Return the agent of the processes with which it has to share a host, if one of them has been placed."""
        for other in list(self._processes.values()) if process.spec.beside else ():
            together = other.owner is process.owner and other.spec.beside == process.spec.beside
            if together and other.agent and other.agent.up:
                return other.agent
        return None

    def _want_soon(self) -> None:
        """Ask for agents for all waiting processes, a moment later: processes are asked for one by one."""
        if (self._waiting or self._too_many) and not self._wanting:
            self._wanting = True
            self._gather(_GATHERINGS)

    def _gather(self, num_left: int) -> None:
        known = len(self._processes)
        self._loop.call_later(_GATHER_S, lambda: self._want(known, num_left))

    def _want(self, known: int, num_left: int) -> None:
        if self._num_askers:
            self._gather(num_left)
            return
        if len(self._processes) > known and num_left:  # their user is still asking for more
            self._gather(num_left - 1)
            return
        self._wanting = False
        self._refuse_too_many()
        self._waiting = [id for id in self._waiting if id in self._processes]
        self._hosts.want([self._processes[id].spec.resources for id in self._waiting])
