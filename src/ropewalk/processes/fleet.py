"""Fleets: the agents of a session, and the engine that places them.

    demand ──sizing──▶ submit ─▶ (pending) ─▶ up ─▶ heard … heard ─▶ lost ─▶ another one
                         engine            dials back, or is dialled    └ its processes are placed again

The loop's thread has the agents; the engine is asked from threads of its own, because it
may block. Who is lost is decided by our own heartbeats: engines notice late, and their
words are only added to what is reported.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from ropewalk.engines.engine import Engine, JobSpec, JobState, JobStatus, Reach
from ropewalk.engines.resources import Resources
from ropewalk.errors import EngineError, LinkClosed, StartFailed, TransportError
from ropewalk.processes.messages import (
    CONTROL,
    REFUSED_EXIT_CODE,
    AgentBoot,
    AgentUp,
    Certificate,
    Ping,
    Pong,
    Shutdown,
)
from ropewalk.processes.sizing import Share, fits, shares
from ropewalk.settings import Settings
from ropewalk.supervision.liveness import Lease, Liveness
from ropewalk.supervision.restart import GiveUp, Restart, RestartBudget
from ropewalk.transport.address import Address, TlsAddress, UnixAddress
from ropewalk.transport.client import dial_over
from ropewalk.transport.credentials import AllowList, Credentials, ProcessCertificate
from ropewalk.transport.link import Link, Received
from ropewalk.transport.loop import Loop
from ropewalk.transport.passport import Passport
from ropewalk.transport.switchboard import Socket, join, new_ticket

logger = logging.getLogger(__name__)

#: What the launcher calls itself in a run.
LAUNCHER = "launcher"
_TICK_S = 0.5
#: An agent ends when it has heard nothing of its launcher for so long. Patient, because a launcher that stands still
#: for a moment must not lose all its agents by it; results that come too late are refused anyway.
_LAUNCHER_LEASE_S = 30.0
#: Leases are looked at more often than they are renewed: who is lost shall be known soon after the end of his lease.
_LOOK_S = 0.1
#: An agent gets this long from the moment in which its job runs to its first word.
_AGENT_START_S = 60.0
#: An agent that waits where the launcher can dial it is tried for so long, and each time for so long.
_BOARD_S, _TRY_S = 6.0, 2.0
#: How long agents may take to end their processes and themselves when the session ends.
_END_S = 3.0
#: Agents on this machine end within milliseconds; those of a cluster are asked about less often.
_POLL_HERE_S, _POLL_S = 0.005, 0.2
#: An agent without processes is given back after this long, if the engine gives another one when it is needed.
_IDLE_S = 30.0
#: Agents of which each comes up within this time of the one before share the processes evenly.
_SPREAD_S = 5.0
#: A job may be queued for so long before people are told why.
_PATIENCE_S = 5.0
#: Losses within this time count as one event.
_ONE_EVENT_S = 1.0
#: No agent is submitted for this long when too many did not stay up, or were refused by the engine.
_PAUSE_S, _REFUSED_S = 60.0, 5.0
#: How often the engine is asked about agents that have not spoken yet.
_CHECK_HERE_S, _CHECK_S = 0.5, 1.0
#: What an agent prints that could not reach the launcher and waits to be dialled.
LISTENS = re.compile(r"^ropewalk-agent listens at ([0-9a-fA-F.:\[\]]+):(\d+)(?:; (.*))?$", re.MULTILINE)


@dataclass(slots=True, eq=False)
class Agent:
    """One agent, from its submission to its end."""

    id: str
    share: Share
    lease: Lease
    credentials: Credentials
    certificate: ProcessCertificate | None = None
    job: str = ""
    link: Link | None = None
    pid: int = 0
    host: str = ""
    ip: str = ""
    dialled: bool = False
    """Whether it waits for the launcher instead of dialling it."""
    board: tuple[str, int] | None = None
    """Where it waits; None behind the engine's door."""
    dialling: bool = False
    submitted: float = field(default_factory=time.monotonic)
    running_since: float | None = None
    checked: float = 0.0
    said: str = ""
    """What the engine said last of a job that is pending, or the agent of why it has to be dialled."""
    num_bytes: int = 0
    pinged: float | None = None
    """When the ping was sent that has not been answered yet."""
    round_trip_s: float = 0.0
    """The quickest answer to a ping so far; 0 on this host."""
    draining: str = ""
    """Why it takes nothing new; empty while it does."""
    idle_since: float | None = None
    blobs: dict[str, list[object]] = field(default_factory=dict[str, list[object]])
    """Blobs that were sent there, with those who need them."""
    codes: set[str] = field(default_factory=set[str])
    """Project files that were sent there."""
    processes: dict[str, Resources] = field(default_factory=dict[str, Resources])
    """What it hosts, and what each asked for."""

    @property
    def up(self) -> bool:
        """Whether it takes processes."""
        return self.link is not None and self.pid != 0 and not self.draining

    @property
    def label(self) -> str:
        """What people read."""
        return f"{self.id} on {self.host}" if self.host else self.id


class Crew(Protocol):
    """Who uses a fleet; called on the loop's thread."""

    def on_agent_up(self, agent: Agent) -> None:
        """It takes processes."""

    def on_heard(self, agent: Agent, received: Received) -> None:
        """It says something."""

    def on_agent_lost(self, agent: Agent, why: str) -> None:
        """It is gone, with all its processes; one event."""

    def on_happened(self, text: str) -> None:
        """Something that people should know, if there are words; processes that wait may be placed now."""

    def on_no_agents(self, error: Exception) -> None:
        """None is left, and none comes any more."""


@dataclass(frozen=True, slots=True)
class Home:
    """What a fleet needs to know of its launcher."""

    run_id: str
    folder: Path
    settings: Settings
    address: Address
    passport: Passport | None
    issue: Callable[[str], ProcessCertificate] | None
    """Makes certificates; None if no host speaks TLS."""


class Fleet:
    """Submits agents, watches them, replaces those that are lost, and gives back those that idle.

    Args:
        engine: where they run.
        home: of the launcher.
        loop: whose thread calls everything here that is not said to be for any thread.
        members: who may speak in the run.
        crew: is told what happens.
    """

    def __init__(self, engine: Engine, home: Home, loop: Loop, members: AllowList, crew: Crew) -> None:
        self.engine = engine
        self.agents: dict[str, Agent] = {}
        """Those that submit add to it in their threads: to be looked through as a list of that moment."""
        self._home = home
        self._loop = loop
        self._members = members
        self._crew = crew
        self._numbers = itertools.count(1)
        self._budget = RestartBudget()
        self._lock = threading.Lock()
        """One thread at a time asks the engine."""
        self._submitting: list[Share] = []
        self._per_job: dict[Resources, int | None] = {}
        self._asking: dict[Resources, list[Callable[[EngineError | None], object]]] = {}
        """Kinds of processes that the engine is being asked about, with those who wait for its answer."""
        self._asking_lock = threading.Lock()
        self._default = default_resources(home.settings)
        self._most = home.settings.hosts or engine.most_jobs()
        self._closed = False
        self._paused_until = 0.0
        self._last_loss = -_ONE_EVENT_S
        self._last_news = time.monotonic()
        """When an agent was submitted or came up last."""
        self._launcher_secret = os.urandom(32).hex()
        self._ticket = new_ticket()
        """What the launcher shows at the switchboard of an agent that it dials."""
        self._here = engine.reach is Reach.HERE

    # Demand

    def open(self) -> None:
        """Submit what is wanted in any case, in this thread: errors of the engine are for whoever opens the session.

        Raises:
            EngineError: the engine refused.
        """
        self._loop.call_soon(self._tick)
        self._loop.call_soon(self._look)
        if self._here:
            self._submit(Share(None, Resources()))

    def prepare(self, resources: Resources, then: Callable[[EngineError | None], object]) -> None:
        """Ask the engine how many such processes fit into a job, once for each kind; from any thread.

        Args:
            resources: what each asks for.
            then: called on the loop, with the engine's error if no host of it can hold even one.
        """
        with self._asking_lock:
            if resources in self._per_job:
                self._loop.call_soon(lambda: then(None))
                return
            waiting = self._asking.setdefault(resources, [])
            waiting.append(then)
            if len(waiting) > 1:
                return  # they hear of it together, and so are placed together

        def ask() -> None:
            num, problem = None, None
            try:
                with self._lock:
                    num = None if self._closed else self.engine.per_job(resources)
            except EngineError as error:
                problem = error
            with self._asking_lock:
                if problem is None:
                    self._per_job[resources] = num
                told = self._asking.pop(resources)
            self._loop.call_soon(lambda: [then(problem) for then in told])

        self._in_thread(ask)

    def place(self, id: str, resources: Resources, total: int, beside: Agent | None = None) -> Agent | None:
        """The agent that shall host a process, or None: it has to wait.

        Args:
            id: of the process.
            resources: what it asks for.
            total: how many processes there are, with those that wait: agents that come up first leave some to others.
            beside: the agent that has to host it, because others of its kind are there; crowded or not.
        """
        ready = [agent for agent in list(self.agents.values()) if agent.up]
        fitting = [agent for agent in ready if fits(agent.share, agent.processes.values(), resources, self._per_job)]
        coming = 0
        if time.monotonic() - self._last_news < _SPREAD_S:
            coming = len(self._submitting) + sum(not agent.pid for agent in list(self.agents.values()))
        if coming:
            even = math.ceil(total / (len(ready) + coming))
            fitting = [agent for agent in fitting if len(agent.processes) < even]
        if not fitting and not coming and not self._may_come():
            fitting = ready  # crowded is better than never
        if not fitting and beside is None:
            return None
        agent = beside or min(fitting, key=lambda agent: len(agent.processes))
        agent.processes[id] = resources
        agent.idle_since = None
        return agent

    def per_agent(self, resources: Resources) -> int:
        """How many processes fill a whole agent; 1 where it takes any number, or that is not known yet."""
        return 1 if self._home.settings.hosts else self._per_job.get(resources) or 1

    def want(self, waiting: list[Resources]) -> None:
        """Submit agents for processes that wait; those that are under way count."""
        hosts = self._home.settings.hosts
        if self._closed or time.monotonic() < self._paused_until or not (waiting or hosts):
            return
        if not waiting and self._default not in self._per_job:
            self.prepare(self._default, lambda _problem: None)  # and ask again with the next tick
            return
        coming = [agent.share for agent in list(self.agents.values()) if not agent.pid and not agent.draining]
        coming += self._submitting
        leaving = sum(bool(agent.draining) for agent in list(self.agents.values()))
        now = len(self.agents) + len(self._submitting) - leaving
        wanted = shares(waiting or [self._default], self._per_job, coming, hosts=hosts, most=self._most, now=now)
        if wanted:
            self._submitting += wanted
            self._in_thread(lambda: self._submit_all(wanted))

    def release(self, agent: Agent, id: str) -> None:
        """A process is gone from an agent."""
        agent.processes.pop(id, None)
        if not agent.processes:
            agent.idle_since = time.monotonic()

    def _may_come(self) -> bool:
        """Whether agents may come that are not up yet."""
        if self._submitting or any(not agent.pid for agent in list(self.agents.values())):
            return True
        staying = sum(not agent.draining for agent in list(self.agents.values()))
        room = self._most is None or staying < self._most
        return room and not self._here and time.monotonic() >= self._paused_until

    # Submission

    def _submit_all(self, wanted: list[Share]) -> None:
        """In a thread of the engine."""
        for number, share in enumerate(wanted):
            try:
                self._submit(share)
            except (EngineError, OSError) as error:
                self._loop.call_soon(partial(self._not_submitted, wanted[number:], error))
                return

    def _not_submitted(self, left: list[Share], error: Exception) -> None:
        for share in left:
            self._submitting.remove(share)
        self._paused_until = time.monotonic() + _REFUSED_S
        if self._closed:
            return
        if any(agent.link for agent in list(self.agents.values())):
            self._crew.on_happened(f"no more agents can be had: {error}")
        elif not self.agents:
            self._crew.on_no_agents(StartFailed(f"no agent could be submitted: {error}"))

    def _submit(self, share: Share) -> None:
        """Submit one agent; in any thread.

        Raises:
            EngineError: the engine refused.
        """
        agent, spec = self.boot(share)
        self.agents[agent.id] = agent
        try:
            with self._lock:
                if self._closed:
                    return
                agent.job = self.engine.submit(spec, 1, self._home.run_id, agent.id)[0]
        except BaseException:
            self.agents.pop(agent.id, None)
            self._members.retire(agent.id)
            raise
        self._loop.call_soon(lambda: self._submitted(agent))

    def _submitted(self, agent: Agent) -> None:
        self._last_news = time.monotonic()
        if agent.share in self._submitting:
            self._submitting.remove(agent.share)
        if agent.dialled and agent.id in self.agents:
            agent.dialling = True
            self._in_thread(lambda: self._dial(agent))

    def boot(self, share: Share) -> tuple[Agent, JobSpec]:
        """A new agent with the job that starts it; from any thread."""
        home, settings = self._home, self._home.settings
        id = f"agent-{next(self._numbers)}"
        credentials = Credentials.create(home.run_id, id)
        certificate = home.issue(id) if home.issue else None
        self._members.admit(id, credentials.secret, certificate.fingerprint if certificate else None)
        lease = Lease(settings.lease_s, time.monotonic())
        agent = Agent(id, share, lease, credentials, certificate, dialled=self.engine.reach is Reach.CARRIED)
        door = f"/tmp/ropewalk-{os.urandom(8).hex()}/door.sock" if agent.dialled else ""
        boot = AgentBoot(
            run_id=home.run_id,
            agent_id=id,
            secret=credentials.secret,
            address=str(home.address),
            folder=str(home.folder) if self._here else "",
            launcher_pid=os.getpid() if self._here else 0,
            max_processes=settings.max_processes,
            log_folder=str(settings.logs or "") if self._here else "",
            certificate=Certificate.of(certificate) if certificate else None,
            launcher_secret=self._launcher_secret,
            launcher_ticket=self._ticket,
            launcher_fingerprint=home.passport.certificate.fingerprint
            if home.passport and home.passport.certificate
            else "",
            door=door,
            lease_s=0.0 if self._here else max(settings.lease_s, _LAUNCHER_LEASE_S),
        )
        spec = JobSpec(
            command=[self.engine.python, "-m", "ropewalk.processes.agent"],
            name="ropewalk-agent",
            environment=import_environment(),
            stdin=msgspec.json.encode(boot),
            folder=str(home.folder),
            resources=share.resources,
            time_limit_s=settings.time_limit_s,
            door=door,
        )
        return agent, spec

    # Coming up

    def linked(self, agent: Agent, link: Link) -> None:
        """The control link of an agent is up."""
        if agent.link is not None or agent.id not in self.agents:
            link.close()
            return
        agent.link = link
        agent.lease = Lease(self._home.settings.lease_s, time.monotonic())
        self._loop.add_link(
            link, lambda received: self._heard(agent, received), lambda why: self._link_lost(agent, link, why)
        )
        self._ping(agent)  # before anything large is under way
        if self._closed:  # it came up while the session was ending, and would be waited for
            with contextlib.suppress(LinkClosed):
                link.send(Shutdown())

    def _heard(self, agent: Agent, received: Received) -> None:
        agent.lease.heard(time.monotonic())
        message = received.message
        if isinstance(message, AgentUp):
            agent.pid, agent.host, agent.ip = message.pid, message.host, message.ip
            agent.idle_since = self._last_news = time.monotonic()
            self._budget.ready(time.monotonic())
            self._crew.on_agent_up(agent)
        elif isinstance(message, Pong):
            self._answered(agent)
        else:
            self._crew.on_heard(agent, received)

    def _ping(self, agent: Agent) -> None:
        agent.pinged = agent.pinged or time.monotonic()
        if agent.link:
            with contextlib.suppress(LinkClosed):
                agent.link.send(Ping())

    def _answered(self, agent: Agent) -> None:
        if agent.pinged is None or self._here:
            return
        took_s = time.monotonic() - agent.pinged
        # The quickest one says how far it is; others waited behind large messages.
        agent.round_trip_s = min(took_s, agent.round_trip_s or took_s)
        agent.pinged = None

    def _check_start(self, agent: Agent, now: float) -> None:
        """An agent that has not spoken yet may be queued, may have died on the way, or may wait to be dialled."""
        if not agent.job or now - agent.checked < (_CHECK_HERE_S if self._here else _CHECK_S) or agent.dialling:
            return
        agent.checked = now

        def check() -> None:
            with self._lock:
                if self._closed:
                    return
                try:
                    status = self.engine.poll([agent.job])[agent.job]
                    said = "" if status.state is JobState.PENDING else self.engine.logs(agent.job)
                except EngineError as error:
                    logger.warning("the engine does not answer: %s", error)
                    return
            self._loop.call_soon(lambda: self._checked(agent, status, said))

        self._in_thread(check)

    def _checked(self, agent: Agent, status: JobStatus, said: str) -> None:
        if agent.link is not None or agent.id not in self.agents or self._closed:
            return
        now = time.monotonic()
        if status.state in (JobState.ENDED, JobState.LOST):
            reason = f" ({status.reason})" if status.reason else ""
            what = f"ended with exit code {status.exit_code}" if status.exit_code is not None else "is gone"
            last = said.strip()[-2000:] or "nothing"
            words = f"its job {agent.job} {what}{reason} before it was up. It said: {last}"
            self._lost(agent, words, hopeless=status.exit_code == REFUSED_EXIT_CODE)
        elif status.hopeless and now - agent.submitted > _PATIENCE_S:
            self._lost(agent, f"its job {agent.job} will never run: {status.reason}")
        elif status.state is JobState.PENDING:
            if status.reason and status.reason != agent.said and now - agent.submitted > _PATIENCE_S:
                agent.said = status.reason
                self._crew.on_happened(f"{agent.id} (job {agent.job}) waits: {status.reason}")
        else:
            agent.running_since = agent.running_since or now
            waits = LISTENS.search(said)
            if waits and not agent.dialling:
                agent.dialled, agent.board = True, (waits[1].strip("[]"), int(waits[2]))
                agent.said = waits[3] or ""
                if waits[3]:
                    self._crew.on_happened(f"{agent.id}: {waits[3]}; the launcher dials it instead")
            if agent.dialled:
                agent.dialling = True
                self._in_thread(lambda: self._dial(agent))
            elif now - agent.running_since > _AGENT_START_S:
                said = said.strip()[-2000:] or "nothing"
                self._lost(agent, f"it was not up {_AGENT_START_S:.0f} s after its job had begun. It said: {said}")

    def reach_board(self, agent: Agent, ticket: str, timeout_s: float) -> Socket:
        """A connection to the switchboard of an agent that has to be dialled; in a thread that may block.

        Raises:
            TransportError, EngineError: there is no way to it.
        """
        return join(agent.board or UnixAddress(self.engine.door(agent.job)), ticket, timeout_s)

    def _dial(self, agent: Agent) -> None:
        """Meet an agent that waits for the launcher; in a thread."""
        # One with a board has said that it waits there; behind the engine's door, its job may only be starting.
        deadline = time.monotonic() + (_BOARD_S if agent.board else _AGENT_START_S)
        why = ""
        while time.monotonic() < deadline and not self._closed and agent.id in self.agents:
            try:
                sock = self.reach_board(agent, self._ticket, _TRY_S if agent.board else 5.0)
                certificate = agent.certificate if agent.board else None
                tls = TlsAddress(*agent.board, certificate.fingerprint) if agent.board and certificate else None
                shown = Credentials(self._home.run_id, LAUNCHER, self._launcher_secret)
                link = dial_over(sock, tls, shown, CONTROL, passport=self._home.passport)
            except (TransportError, EngineError, OSError) as error:
                if not why and agent.board:
                    self._loop.call_soon(partial(self._crew.on_happened, self._obstacle(agent, error)))
                why = str(error)
                if self._has_ended(agent):
                    break
                time.sleep(0.1)
                continue
            self._loop.call_soon(partial(self.linked, agent, link))
            return
        if agent.board:
            failure = (
                f"{agent.said}. Nor in the other direction: {why}. Open one of the two, or move the launcher to where "
                "the hosts are with `ropewalk submit`"
            )
        else:
            failure = f"the launcher could not reach it at the engine's door: {why}"
        self._loop.call_soon(lambda: self._never_met(agent, failure))

    def _obstacle(self, agent: Agent, error: Exception) -> str:
        from ropewalk.transport.probe import unreached  # only a run with such a host loads it

        assert agent.board
        return unreached(*agent.board, error, _TRY_S).explain("the launcher", agent.id)

    def _has_ended(self, agent: Agent) -> bool:
        with self._lock, contextlib.suppress(EngineError):
            return self.engine.poll([agent.job])[agent.job].state in (JobState.ENDED, JobState.LOST)
        return False

    def _never_met(self, agent: Agent, why: str) -> None:
        agent.dialling = False
        if agent.id not in self.agents or agent.link is not None or self._closed:
            return

        def ask() -> None:
            said, status = "", JobStatus(JobState.RUNNING)
            with self._lock, contextlib.suppress(EngineError):
                status = self.engine.poll([agent.job])[agent.job]
                said = self.engine.logs(agent.job).strip()[-2000:]
            words = " ".join(filter(None, (f"{why}.", status.reason)))
            if not agent.board:
                words += f" It said: {said or 'nothing'}"
            self._loop.call_soon(lambda: self._lost(agent, words, hopeless=agent.board is not None))

        self._in_thread(ask)

    # Loss

    def _tick(self) -> None:
        if self._closed:
            return
        now = time.monotonic()
        for agent in list(self.agents.values()):
            if agent.link is None:
                self._check_start(agent, now)
                continue
            self._ping(agent)
            if self._idles(agent, now):
                self.dismiss(agent)
        if self._home.settings.hosts:
            self.want([])
        self._crew.on_happened("")
        self._loop.call_later(_TICK_S, self._tick)

    def _look(self) -> None:
        if self._closed:
            return
        now = time.monotonic()
        for agent in list(self.agents.values()):
            link = agent.link
            if link is None:
                continue
            if link.received_bytes != agent.num_bytes:  # also of a large message that is not whole yet
                agent.num_bytes = link.received_bytes
                agent.lease.heard(now)
            if agent.lease.state(now) is Liveness.LOST:
                self._loop.remove_link(link)
                self._link_lost(agent, link, f"nothing was heard of it for {agent.lease.silent_s(now):.1f} s")
        self._loop.call_later(_LOOK_S, self._look)

    def _idles(self, agent: Agent, now: float) -> bool:
        if self._here or self._home.settings.hosts or agent.processes or agent.idle_since is None:
            return False
        return now - agent.idle_since > _IDLE_S and sum(other.up for other in list(self.agents.values())) > 1

    def dismiss(self, agent: Agent) -> None:
        """Give an agent back that is needed no more."""
        agent.draining = agent.draining or "it is given back"
        if agent.link:
            with contextlib.suppress(LinkClosed):
                agent.link.send(Shutdown())

    def _link_lost(self, agent: Agent, link: Link, why: str) -> None:
        if agent.link is link:
            self._lost(agent, why)

    def _lost(self, agent: Agent, why: str, *, hopeless: bool = False) -> None:
        """One event, however many processes it takes with it. Hopeless: another one would fare no better."""
        if self.agents.pop(agent.id, None) is None:
            return
        self._members.retire(agent.id)
        if agent.link:
            agent.link.close()
        if self._closed:
            return
        planned = bool(agent.draining)
        if planned:
            if agent.processes:
                self._crew.on_agent_lost(agent, agent.draining)
        else:
            where = f" (pid {agent.pid})" if agent.pid else ""
            what = f"the agent on {agent.host}" if agent.host else f"the agent {agent.id}"
            self._crew.on_agent_lost(agent, f"{what}{where} is gone: {why}")
        self._in_thread(lambda: self._end_job(agent))
        if planned:
            return
        now = time.monotonic()
        if hopeless:
            self._paused_until = now + _PAUSE_S
            if not self.agents and not self._submitting:
                self._crew.on_no_agents(StartFailed(f"no agent could join this run. The last one: {why}"))
            return
        if now - self._last_loss < _ONE_EVENT_S:
            return  # part of what was counted just now: a switch that failed, a partition that was drained
        self._last_loss = now
        match self._budget.died(now, healthy=agent.pid != 0, cause=why):
            case Restart(delay_s):
                self._paused_until = now + delay_s
            case GiveUp(reason, _):
                self._paused_until = now + _PAUSE_S
                if not any(other.link for other in list(self.agents.values())):
                    error = StartFailed(f"no agent stays up: {reason}. The last one: {why}")
                    self._crew.on_no_agents(error)
                else:
                    self._crew.on_happened(f"agents are not replaced for a minute: {reason}")

    def _end_job(self, agent: Agent) -> None:
        with self._lock, contextlib.suppress(EngineError):
            if agent.job and not self._closed:
                self.engine.cancel([agent.job])

    # The end

    def close(self) -> None:
        """Have all agents end, and end those that do not; not from the loop's thread."""
        self._closed = True
        for agent in list(self.agents.values()):
            if agent.link:
                with contextlib.suppress(LinkClosed):
                    agent.link.send(Shutdown())
        jobs = [agent.job for agent in list(self.agents.values()) if agent.job]
        deadline = time.monotonic() + _END_S
        with self._lock, contextlib.suppress(EngineError):
            jobs += [job for job in self.engine.find(self._home.run_id) if job not in jobs]  # lost ones that still run
            never_up = [agent.job for agent in list(self.agents.values()) if agent.job and agent.link is None]
            if never_up:
                self.engine.cancel(never_up)
            while time.monotonic() < deadline:
                states = self.engine.poll(jobs)
                if all(status.state in (JobState.ENDED, JobState.LOST) for status in states.values()):
                    break
                time.sleep(_POLL_HERE_S if self._here else _POLL_S)
            self.engine.cancel(jobs)
            self.engine.close()

    def kill(self) -> None:
        """End all jobs at once, without asking."""
        self._closed = True
        if self._here:
            return  # the agents are killed by their pids
        with contextlib.suppress(EngineError):
            self.engine.cancel([agent.job for agent in list(self.agents.values()) if agent.job])

    def _in_thread(self, call: Callable[[], None]) -> None:
        threading.Thread(target=call, name="ropewalk-engine", daemon=True).start()


def default_resources(settings: Settings) -> Resources:
    """What a process asks for that names nothing itself: the settings `cpus`, `gpus` and `memory`."""
    return Resources(settings.cpus or 1, settings.gpus or 0, settings.memory)


def import_environment() -> Mapping[str, str]:
    """What a fresh interpreter needs to find this package, where it is not installed for it."""
    root = str(Path(__file__).resolve().parents[2])
    if root.endswith("site-packages"):
        return {}
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{root}{os.pathsep}{inherited}" if inherited else root}
