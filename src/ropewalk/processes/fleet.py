"""Fleets: the agents of a session, and the engine that places them.

    demand ──sizing──▶ submit ─▶ (pending) ─▶ up ─▶ heard … heard ─▶ lost ─▶ another one
                         engine            dials back, or is dialled    └ its processes are placed again

The loop's thread has the agents; the engine is asked from threads of its own, because it may block. Loss is decided by
our own heartbeats: engines notice late, and their messages are only added to the report.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from ropewalk.engines.cluster_commands import is_passing
from ropewalk.engines.engine import Engine, HostSlots, Reach
from ropewalk.engines.resources import HostCapacity, Resources
from ropewalk.errors import EngineError, StartFailed
from ropewalk.escaping import escaped
from ropewalk.processes.agent_bootstrap import AgentBootstrap
from ropewalk.processes.agent_record import AgentRecord, Home
from ropewalk.processes.engine_client import EngineClient
from ropewalk.processes.environment import variables_as_sent
from ropewalk.processes.messages import AgentUp, Ping, Pong, ShutdownMessage
from ropewalk.processes.sizing import Share, described, fits, shares, shares_of_places, suits, too_many
from ropewalk.quantities import shown_duration
from ropewalk.settings import Settings
from ropewalk.supervision.liveness import Lease, Liveness
from ropewalk.supervision.restart import GiveUp, RestartBudget, StartAgain
from ropewalk.transport.address import TlsAddress, parse_address
from ropewalk.transport.credentials import AllowList
from ropewalk.transport.joining import Socket
from ropewalk.transport.link import Link, Received
from ropewalk.transport.loop import Loop

logger = logging.getLogger(__name__)

_TICK_S = 0.5
_LOOKS = 5
"""Leases are checked at least this often in the time of a lease, and when the first of them ends."""
_IDLE_S = 30.0
"""An agent without processes is given back after this long (seconds), if the engine gives another one when it is
needed."""
_SPREAD_S = 5.0
"""Agents that come up within this time (seconds) of the one before share the processes evenly."""
_ONE_EVENT_S = 1.0
"""Losses within this time (seconds) count as one event."""
_AWAY_S, _MOST_AWAY = 600.0, 16
"""New jobs avoid the hosts of agents that were lost within this time (seconds), up to the stated number. After that
time the engine knows itself which hosts are gone.
"""
_CROWD_S = 0.2
"""Processes are placed one by one; a warning of too many on one host waits this long (seconds), until all are placed.
"""
_PAUSE_S, _REFUSED_S = 60.0, 5.0
"""No agent is submitted for this long (seconds) when too many did not stay up, or were refused by the engine."""


_MAX_HOST_NAME = 255
"""The longest name of a host (RFC 1035) that is shown."""


class FleetListener(Protocol):
    """The user of a fleet; called on the loop's thread."""

    def on_agent_up(self, agent: AgentRecord) -> None:
        """Called when an agent takes processes."""

    def on_heard(self, agent: AgentRecord, received: Received) -> None:
        """Called with each message of an agent."""

    def on_agent_lost(self, agent: AgentRecord, why: str) -> None:
        """Called when an agent is gone, with all its processes; one event.

        `why` is empty if the user was told of the cause with another agent.
        """

    def on_happened(self, text: str) -> None:
        """Called with an event that the user should know; waiting processes may be placed now."""

    def on_look(self) -> None:
        """Called periodically: waiting processes may be placed now."""

    def on_no_agents(self, error: Exception) -> None:
        """Called when no agent is left, and none comes any more."""


class Fleet:
    """Submits agents, watches them, replaces lost ones, and gives back idle ones.

    Args:
        engine: the engine on which they run.
        home: what a fleet needs to know of its launcher.
        loop: its thread calls everything here that is not said to be for any thread.
        members: the processes that may connect in the run.
        listener: is told what happens.
    """

    def __init__(self, engine: Engine, home: Home, loop: Loop, members: AllowList, listener: FleetListener) -> None:
        self.agents: dict[str, AgentRecord] = {}
        """Agents by id. Submitting threads add to it, so iterate over a copy."""
        self._home = home
        self._loop = loop
        self._members = members
        self._listener = listener
        self._budget = RestartBudget()
        self._submitting: list[Share] = []
        self._default = default_resources(home.settings)
        self._engine = EngineClient(engine, loop)
        self._per_job = self._engine.per_job
        self._bootstrap = AgentBootstrap(self._engine, home, loop, members, self)
        self._most = home.settings.hosts or self._engine.most_jobs
        self._closed = False
        self._paused_until = 0.0
        self._last_loss = -_ONE_EVENT_S
        self._lost_jobs: deque[tuple[float, str]] = deque(maxlen=_MOST_AWAY)
        """The jobs of agents that were up and were lost without notice, with the time."""
        self._last_cause = ""
        self._is_refused = False
        """Whether the user was told that the engine refuses agents, and it has accepted none since."""
        self._away_since: float | None = None
        """Since when the server of the engine does not answer; None while it does."""
        self._last_news = time.monotonic()
        """When an agent was last submitted or came up."""
        self._here = engine.reach is Reach.HERE

    # Demand

    def open(self) -> None:
        """Submit the agents that are needed in any case, in this thread.

        Errors of the engine go to the caller that opens the session.

        Raises:
            EngineError: the engine refused.
        """
        self._loop.call_soon(self._tick)
        self._loop.call_soon(self._look)
        if self._here:
            self._submit(Share(None, Resources()))

    def prepare(self, resources: Resources, then: Callable[[EngineError | None], object]) -> None:
        """See `EngineClient.prepare`."""
        self._engine.prepare(resources, then)

    def place(self, id: str, resources: Resources, total: int, beside: AgentRecord | None = None) -> AgentRecord | None:
        """Return the agent for a process, or None if the process has to wait.

        Args:
            id: id of the process.
            resources: what it asks for.
            total: how many processes there are, waiting ones included: agents that come up first leave some to others.
            beside: the agent that has to host it, because others of its kind are there; crowded or not.
        """
        ready = [agent for agent in list(self.agents.values()) if agent.up]
        ready.sort(key=lambda agent: agent.num_staying)  # the first that fits is the emptiest: few have to be asked
        candidates = ready
        coming = 0
        if time.monotonic() - self._last_news < _SPREAD_S:
            coming = len(self._submitting) + sum(not agent.pid for agent in list(self.agents.values()))
        if coming:
            even = math.ceil(total / (len(ready) + coming))
            candidates = [agent for agent in ready if agent.num_staying < even]
        agent = beside or self._roomy(candidates, resources, wait=bool(coming))
        if agent is None and ready and not coming and not self._may_come(resources):
            roomy = (agent for agent in ready if agent.has_room(resources))
            larger = (agent for agent in ready if agent.host_has_room(resources))
            agent = next(roomy, None) or next(larger, ready[0])  # crowded is better than never
        if agent is None:
            return None
        if not agent.has_room(resources):
            self._loop.call_later(_CROWD_S, lambda: self._tell_if_crowded(agent))
        agent.processes[id] = resources
        agent.idle_since = None
        return agent

    def _roomy(self, agents: Sequence[AgentRecord], resources: Resources, *, wait: bool) -> AgentRecord | None:
        """Return the first agent that has room for a process, if there is one.

        Each agent comes for processes of one kind, which would have no place if others took theirs. So a process goes
        to another kind's agent only if none of its own kind is coming.

        Args:
            agents: the ones that are up.
            resources: what the process asks for.
            wait: whether agents are coming.
        """
        own = (agent for agent in agents if agent.share.kind == resources)
        if agent := next((agent for agent in own if agent.has_room(resources)), None):
            return agent
        if wait and any(share.kind == resources for share in self._coming()):
            return None
        others = (agent for agent in agents if suits(agent.share, resources))
        return next((agent for agent in others if agent.has_room(resources)), None)

    def _coming(self) -> list[Share]:
        """Return the shares of the agents that are being started."""
        starting = [agent.share for agent in list(self.agents.values()) if not agent.pid and not agent.draining]
        return starting + self._submitting

    def _tell_if_crowded(self, agent: AgentRecord) -> None:
        """Report that more stays on a host than it has room for; once for each time that it becomes crowded."""
        *others, last = agent.staying or (None,)
        is_crowded = last is not None and not fits(agent.share, others, last) and not agent.host_has_room()
        if is_crowded and not agent.is_crowded and agent.id in self.agents:
            room = f"room for {agent.share.slots} of {described(agent.share.kind)}"
            self._listener.on_happened(
                f"{len(others) + 1} processes run on {agent.host}, where {agent.id} has {room}, because no other "
                "host can be had: they share its CPUs"
            )
        agent.is_crowded = is_crowded

    def per_agent(self, resources: Resources) -> int:
        """Return how many processes fill a whole agent; 1 where it takes any number, or that is not known yet."""
        return 1 if self._home.settings.hosts else self._per_job.get(resources) or 1

    def want(self, waiting: list[Resources]) -> None:
        """Submit agents for waiting processes; agents that are being started count."""
        hosts = self._home.settings.hosts
        if self._closed or time.monotonic() < self._paused_until or not (waiting or hosts):
            return
        kinds = set(waiting or [self._default])
        if unknown := next((kind for kind in kinds if kind not in self._per_job), None):
            self.prepare(unknown, lambda problem: self._want_again(waiting, problem))
            return
        waiting = waiting or [self._default]
        coming = self._coming()
        now = self._num_agents()
        if self._engine.places:
            free = self._free(self._engine.places)
            wanted = shares_of_places(waiting, self._per_job, coming, hosts=hosts, free=free, now=now)
            if not (wanted or coming or hosts):
                self._make_room()
        else:
            wanted = shares(waiting, self._per_job, coming, hosts=hosts, most=self._most, now=now)
        if wanted:
            self._submitting += wanted
            self._engine.in_thread(lambda: self._submit_all(wanted))

    def _want_again(self, waiting: list[Resources], problem: EngineError | None) -> None:
        """Called when the engine has answered about a kind of processes.

        With a fixed number of hosts and no waiting processes, the next tick submits agents.
        """
        if problem is None:
            self._answers()
            if waiting:
                self.want(waiting)
        elif not self._is_away(problem) and waiting and not self.agents:
            self._listener.on_no_agents(StartFailed(str(problem)))

    def _is_away(self, error: Exception) -> bool:
        """Return whether the engine, which has answered in this run, does not for now, and is asked until it does.

        The outage of a cluster's server says nothing about the run. An engine that has never answered may be a mistake
        in its options, which is told at once.
        """
        if not (isinstance(error, EngineError) and is_passing(error) and self._per_job):
            return False
        self._paused_until = time.monotonic() + _REFUSED_S
        if self._away_since is None:
            self._away_since = time.monotonic()
            self._listener.on_happened(
                f"no agents can be had until the engine answers again; it is asked every {_REFUSED_S:g} s: {error}"
            )
        return True

    def _answers(self) -> None:
        """Note that the engine has answered."""
        since, self._away_since = self._away_since, None
        if since is not None:
            self._listener.on_happened(f"the engine answers again, after {shown_duration(time.monotonic() - since)}")

    def refusal(self, processes: Callable[[], Sequence[Resources]]) -> str:
        """Return why some processes can never run at the same time, whatever is submitted.

        The text is empty if that is not known; then the processes are not looked up, which takes long for thousands.
        """
        places = self._engine.places
        return too_many(processes(), places, self._home.settings.hosts) if places else ""

    def _free(self, places: HostSlots) -> dict[str, HostCapacity]:
        """Return what no agent has of each place."""
        free = dict(places.rooms)
        for share in [*(agent.share for agent in list(self.agents.values())), *self._submitting]:
            if share.place in free:
                free[share.place] = free[share.place].without(share.resources)
        return free

    def _make_room(self) -> None:
        """Give back idle agents: other processes may wait for their room."""
        for agent in list(self.agents.values()):
            if agent.up and not agent.processes and not agent.services:
                self.dismiss(agent)

    def release(self, agent: AgentRecord, id: str) -> None:
        """Note that a process is gone from an agent."""
        agent.processes.pop(id, None)
        agent.leaving.discard(id)
        agent.services.discard(id)
        if not agent.processes and not agent.services:
            agent.idle_since = time.monotonic()

    def _may_come(self, resources: Resources) -> bool:
        """Return whether room for a process of this kind may come, with agents that are not up yet or otherwise."""
        agents = list(self.agents.values())
        if self._submitting or any(not agent.pid for agent in agents):
            return True
        if (resources.gpus or resources.memory_bytes) and any(agent.leaving for agent in agents):
            return True  # what those use cannot be shared, and is free when they have ended
        if self._here or time.monotonic() < self._paused_until:
            return False
        if (hosts := self._home.settings.hosts) is not None:
            return self._num_agents() < hosts
        if self._engine.places:  # also when an idle agent is given back, or a lost one has not ended yet
            idle = any(agent.draining or not (agent.processes or agent.services) for agent in agents)
            return idle or any(room.holds(resources) for room in self._free(self._engine.places).values())
        return self._most is None or self._num_agents() < self._most

    def _num_agents(self) -> int:
        """Return how many agents there are or will be, without those that are leaving."""
        return len(self._submitting) + sum(not agent.draining for agent in list(self.agents.values()))

    # Submission

    def _submit_all(self, wanted: list[Share]) -> None:
        """Submit agents in a thread of the engine."""
        for number, share in enumerate(wanted):
            try:
                self._submit(share)
            except (
                Exception
            ) as error:  # of whatever kind: the shares would count as coming, and be waited for, for ever
                if not isinstance(error, EngineError | OSError):
                    logger.exception("an agent could not be made")
                self._loop.call_soon(partial(self._not_submitted, wanted[number:], error))
                return

    def _not_submitted(self, left: list[Share], error: Exception) -> None:
        for share in left:
            self._submitting.remove(share)
        self._paused_until = time.monotonic() + _REFUSED_S
        if self._closed or self._is_away(error):
            return
        self._answers()
        if not self.agents:
            self._listener.on_no_agents(StartFailed(f"no agent could be submitted: {error}"))
        elif not self._is_refused:  # it is asked again every few seconds
            self._is_refused = True
            self._listener.on_happened(f"no more agents can be had: {error}")

    def _submit(self, share: Share) -> None:
        """Submit one agent; in any thread.

        Raises:
            EngineError: the engine refused.
        """
        now = time.monotonic()
        lost = [job for when, job in list(self._lost_jobs) if now - when < _AWAY_S]
        agent, spec = self._bootstrap.prepare(share, lost)
        self.agents[agent.id] = agent
        try:
            agent.job = self._engine.submit(spec, self._home.run_id, agent.id)
            agent.room = self._engine.room(agent.job)
        except BaseException:
            self.agents.pop(agent.id, None)
            self._members.retire(agent.id)
            raise
        self._loop.call_soon(lambda: self._submitted(agent))

    def _submitted(self, agent: AgentRecord) -> None:
        self._is_refused = False
        self._last_news = time.monotonic()
        self._answers()
        if agent.share in self._submitting:
            self._submitting.remove(agent.share)
        if agent.dialled and agent.id in self.agents:
            self._bootstrap.dial(agent)

    # Coming up

    def linked(self, agent: AgentRecord, link: Link) -> None:
        """Handle the control link of an agent that has come up."""
        if agent.link is not None or agent.id not in self.agents:
            link.close()
            return
        agent.link = link
        agent.lease = Lease(self._home.settings.lease_s, time.monotonic())
        self._loop.add_link(
            link, lambda received: self._heard(agent, received), lambda why: self._link_lost(agent, link, why)
        )
        self._ping(agent)  # before anything large is in transit
        if self._closed:  # it came up while the session was ending, which would wait for it
            link.send_if_open(ShutdownMessage())

    def _heard(self, agent: AgentRecord, received: Received) -> None:
        agent.lease.heard(time.monotonic())
        if agent.link:
            agent.num_bytes = agent.link.received_bytes
        message = received.message
        if isinstance(message, AgentUp):
            if agent.pid:
                return  # an agent reports that once
            agent.pid, agent.host, agent.ip = message.pid, escaped(message.host[:_MAX_HOST_NAME]), message.ip
            if self._here and message.environment is not None:  # another host would be told all variables of this one
                agent.environment = variables_as_sent(message.environment)
            agent.blob_address = message.blobs if _is_of(agent, message.blobs) else ""
            agent.idle_since = self._last_news = time.monotonic()
            self._budget.ready(time.monotonic())
            self._listener.on_agent_up(agent)
        elif isinstance(message, Pong):
            self._answered(agent)
        else:
            self._listener.on_heard(agent, received)

    def _ping(self, agent: AgentRecord) -> None:
        agent.pinged = agent.pinged or time.monotonic()
        if agent.link:
            agent.link.send_if_open(Ping())

    def _answered(self, agent: AgentRecord) -> None:
        if agent.pinged is None or self._here:
            return
        took_s = time.monotonic() - agent.pinged
        # The shortest one is the distance; others waited after large messages.
        agent.round_trip_s = min(took_s, agent.round_trip_s or took_s)
        agent.pinged = None

    def reach_board(self, agent: AgentRecord, ticket: str, timeout_s: float) -> Socket:
        """See `AgentBootstrap.reach_board`."""
        return self._bootstrap.reach_board(agent, ticket, timeout_s)

    def expects(self, agent: AgentRecord) -> bool:
        return not self._closed and agent.link is None and agent.id in self.agents

    def happened(self, text: str) -> None:
        self._listener.on_happened(text)

    # Loss

    def _tick(self) -> None:
        if self._closed:
            return
        now = time.monotonic()
        for agent in list(self.agents.values()):
            if agent.link is None:
                self._bootstrap.look_at(agent, now)
                continue
            self._ping(agent)
            if self._idles(agent, now):
                self.dismiss(agent)
        if self._home.settings.hosts:
            self.want([])
        self._listener.on_look()
        self._loop.call_later(_TICK_S, self._tick)

    def _look(self) -> None:
        if self._closed:
            return
        now = time.monotonic()
        next_s = self._home.settings.lease_s / _LOOKS
        for agent in list(self.agents.values()):
            link = agent.link
            if link is None:
                continue
            if link.received_bytes != agent.num_bytes:  # of a large message that is not complete yet
                agent.num_bytes = link.received_bytes
                agent.lease.heard(now)
            if agent.lease.state(now) is Liveness.LOST:
                self._loop.remove_link(link)
                self._link_lost(agent, link, f"nothing was heard of it for {agent.lease.silent_s(now):.1f} s")
            else:
                next_s = min(next_s, agent.lease.left_s(now))
        self._loop.call_later(next_s, self._look)

    def _idles(self, agent: AgentRecord, now: float) -> bool:
        if self._here or self._home.settings.hosts or agent.processes or agent.idle_since is None:
            return False
        return now - agent.idle_since > _IDLE_S and sum(other.up for other in list(self.agents.values())) > 1

    def dismiss(self, agent: AgentRecord) -> None:
        """Give back an agent that is not needed any more."""
        agent.draining = agent.draining or "it is given back"
        if agent.link:
            agent.link.send_if_open(ShutdownMessage())

    def _link_lost(self, agent: AgentRecord, link: Link, why: str) -> None:
        if agent.link is link:
            self.lost(agent, why)

    def lost(self, agent: AgentRecord, why: str, *, hopeless: bool = False, cause: str = "") -> None:
        """Handle the loss of an agent: one event for all of its processes.

        Args:
            agent: the agent.
            why: what is known of its end.
            hopeless: whether another agent would fail likewise.
            cause: the part of `why` that the losses of several agents have in common: the user is told once.
        """
        if self.agents.pop(agent.id, None) is None:
            return
        self._members.retire(agent.id)
        if agent.link:
            agent.link.close()
        if self._closed:
            return
        planned = bool(agent.draining)
        if agent.pid and not planned:  # its replacement may be submitted while the loss is reported
            self._lost_jobs.append((time.monotonic(), agent.job))
        where = f" (pid {agent.pid})" if agent.pid else ""
        what = f"the agent on {agent.host}" if agent.host else f"the agent {agent.id}"
        if planned:
            if agent.processes:
                self._listener.on_agent_lost(agent, f"{what}{where} is gone: {agent.draining}")
        else:
            is_known = bool(cause) and cause == self._last_cause
            self._last_cause = cause or self._last_cause
            self._listener.on_agent_lost(agent, "" if is_known else f"{what}{where} is gone: {why}")
        self._engine.in_thread(lambda: self._engine.end(agent.job, was_told=planned))
        if planned:
            return
        now = time.monotonic()
        if hopeless:
            self._paused_until = now + _PAUSE_S
            if not self.agents and not self._submitting:
                self._listener.on_no_agents(StartFailed(f"no agent could join this run. The last one: {why}"))
            return
        if now - self._last_loss < _ONE_EVENT_S:
            return  # part of the event counted just now: a switch that failed, a partition that was drained
        self._last_loss = now
        match self._budget.died(now, healthy=agent.pid != 0, cause=why):
            case StartAgain(delay_s):
                self._paused_until = now + delay_s
            case GiveUp(reason, _):
                self._paused_until = now + _PAUSE_S
                if not any(other.link for other in list(self.agents.values())):
                    error = StartFailed(f"no agent stays up: {reason}. The last one: {why}")
                    self._listener.on_no_agents(error)
                else:
                    # The verdict of a budget is final, and the run goes on: a loss days later is not judged by it.
                    self._budget = RestartBudget()
                    self._listener.on_happened(f"agents are not replaced for a minute: {reason}")

    # The end

    def close(self) -> bool:
        """Have all agents end, and cancel those that do not; not from the loop's thread.

        Returns:
            Whether no job is left; False if the engine does not say so in time.
        """
        self._closed = self._engine.closed = True
        for agent in list(self.agents.values()):
            if agent.link:
                agent.link.send_if_open(ShutdownMessage())
        agents = [agent for agent in list(self.agents.values()) if agent.job]
        never_up = [agent.job for agent in agents if agent.link is None]
        return self._engine.close(self._home.run_id, [agent.job for agent in agents], never_up)

    def kill(self) -> None:
        """Cancel all jobs at once, without notice."""
        self._closed = True
        agents = list(self.agents.values())
        if not self._here:
            self._engine.kill([agent.job for agent in agents if agent.job])
            return
        for agent in agents:
            if agent.pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(agent.pid, signal.SIGKILL)


def _is_of(agent: AgentRecord, address: str) -> bool:
    """Return whether an agent, with its own certificate, must be the one that answers at an address."""
    with contextlib.suppress(ValueError):
        place = parse_address(address)
        if isinstance(place, TlsAddress) and agent.certificate:
            return place.fingerprint == agent.certificate.fingerprint
    return False


def default_resources(settings: Settings) -> Resources:
    """Return what a process asks for that names nothing itself: the settings `cpus`, `gpus` and `memory`."""
    return Resources(settings.cpus or 1, settings.gpus or 0, settings.memory)
