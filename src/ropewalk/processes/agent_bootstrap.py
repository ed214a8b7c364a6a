"""How agents come up: from the job that starts an agent to its first message, whichever side dials.

prepare ─▶ (submitted) ─▶ queued ─▶ runs ─▶ dials the launcher ─────────────▶ linked
                            │        │ └──▶ prints where it listens ─▶ dial ──▲
                            └────────┴──▶ lost, with what the engine and the agent said of it
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec

from ropewalk.engines.engine import JobSpec, JobState, JobStatus, Reach
from ropewalk.engines.job_script import SETUP_FAILED
from ropewalk.errors import EngineError, TransportError, TransportRefused
from ropewalk.interpreters import OUR_PYTHON, import_environment, module_command, version_told
from ropewalk.processes.agent_record import AgentRecord, Home
from ropewalk.processes.engine_client import EngineClient
from ropewalk.processes.messages import CONTROL, REFUSED_EXIT_CODE, AgentBoot, Certificate
from ropewalk.processes.sizing import Share
from ropewalk.quantities import counted
from ropewalk.supervision.liveness import Lease
from ropewalk.transport.address import TlsAddress, UnixAddress
from ropewalk.transport.client import dial_over
from ropewalk.transport.credentials import LAUNCHER, AllowList, Credentials
from ropewalk.transport.joining import Socket, join, new_ticket
from ropewalk.transport.link import Link
from ropewalk.transport.loop import Loop
from ropewalk.transport.tokens import key_of_host
from ropewalk.version import VERSION

_LAUNCHER_LEASE_S = 30.0
"""Lease: an agent ends when it has received nothing from its launcher for this long, in seconds. Generous, because a
launcher that stands still for a moment must not lose all its agents; results that come too late are refused anyway."""
_AGENT_START_S = 60.0
"""Timeout of an agent, from the start of its job to its first message, in seconds."""
_BOARD_S, _TRY_S = 6.0, 2.0
"""Timeout of dialling an agent that waits at its relay: of all attempts, and of each, in seconds."""
_PATIENCE_S = 5.0
"""A job that is queued for longer than this is reported to the user with the reason, in seconds."""
_GATHER_S = 1.5
"""Jobs that are found to wait for the same reason within this long, in seconds, are reported together."""
_CHECK_HERE_S, _CHECK_S = 0.5, 1.0
"""How often the engine is asked about agents that have not connected yet, on this host and elsewhere, in seconds."""
LISTENS = re.compile(r"^ropewalk-agent listens at ([0-9a-fA-F.:\[\]]+):(\d+)(?:; (.*))?$", re.MULTILINE)
"""The line that an agent prints if it could not reach the launcher and waits to be dialled."""


_NO_PYTHON = (126, 127)
"""Exit codes of a shell that may not run a program, or does not find it."""
_FATAL = (REFUSED_EXIT_CODE, SETUP_FAILED)
"""Exit codes of an agent that was refused, or whose setup failed: another agent would end likewise."""
_NO_SUCH_OPTION = "Unknown option: -P"
"""What a Python says that is older than 3.11."""


class Port(Protocol):
    """The part of a fleet to which agents connect. Called on the loop's thread, except `expects`."""

    def expects(self, agent: AgentRecord) -> bool:
        """Return whether an agent has not connected yet; from any thread."""
        ...

    def linked(self, agent: AgentRecord, link: Link) -> None:
        """Called when the control link of an agent is up."""

    def lost(self, agent: AgentRecord, why: str, *, hopeless: bool = False, cause: str = "") -> None:
        """Called when an agent will not come up.

        `hopeless`: another one would fail likewise. `cause`: the part of `why` that many agents have in common; the
        user need not be told of it for each of them.
        """

    def happened(self, text: str) -> None:
        """Called with an event that the user should know."""


class AgentBootstrap:
    """Makes agents, and follows them until they are linked or lost.

    Args:
        engine: client of the engine.
        home: what a fleet needs to know of its launcher.
        loop: its thread calls everything here that is not said to be for any thread.
        members: the processes that may connect in the run.
        port: is told what becomes of agents.
    """

    def __init__(self, engine: EngineClient, home: Home, loop: Loop, members: AllowList, port: Port) -> None:
        self._engine = engine
        self._home = home
        self._loop = loop
        self._members = members
        self._port = port
        self._numbers = itertools.count(1)
        self._here = engine.reach is Reach.HERE
        self._waiting: dict[str, list[AgentRecord]] = {}
        """Agents whose wait is about to be reported, by its reason."""
        self._due: list[AgentRecord] = []
        """Agents about which the engine is about to be asked."""
        self._is_looking = False
        """Whether it is being asked about agents."""

    def prepare(self, share: Share, away_from: Sequence[str] = ()) -> tuple[AgentRecord, JobSpec]:
        """Make an agent with the job that starts it, and admit it to the run. From any thread.

        Args:
            share: the part of a host that the agent may use.
            away_from: the jobs of agents that were lost a short time ago.
        """
        home, settings = self._home, self._home.settings
        id = f"agent-{next(self._numbers)}"
        credentials = Credentials.create(home.run_id, id)
        certificate = home.issue(id) if home.issue else None
        self._members.admit(id, credentials.secret, certificate.fingerprint if certificate else None)
        lease = Lease(settings.lease_s, time.monotonic())
        agent = AgentRecord(
            id,
            share,
            lease,
            credentials,
            certificate,
            launcher_secret=os.urandom(32).hex(),
            launcher_ticket=new_ticket(),
            dialled=self._engine.reach is Reach.CARRIED,
        )
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
            launcher_secret=agent.launcher_secret,
            launcher_ticket=agent.launcher_ticket,
            launcher_fingerprint=home.passport.certificate.fingerprint
            if home.passport and home.passport.certificate
            else "",
            door=agent.dialled,
            service_key=key_of_host(home.run_key, "" if self._here else id),
            lease_s=0.0 if self._here else max(settings.lease_s, _LAUNCHER_LEASE_S),
        )
        spec = JobSpec(
            command=module_command(self._engine.python, "ropewalk.processes.agent_main"),
            name="ropewalk-agent",
            environment=import_environment(),
            stdin=msgspec.json.encode(boot),
            folder=str(home.folder),
            resources=share.resources,
            time_limit_s=settings.time_limit_s,
            place=share.place,
            away_from=away_from,
            door=agent.dialled,
        )
        return agent, spec

    def look_at(self, agent: AgentRecord, now: float) -> None:
        """Check an agent that has not connected yet: it may be queued, may have died, or may wait to be dialled."""
        if not agent.job or now - agent.checked < (_CHECK_HERE_S if self._here else _CHECK_S) or agent.dialling:
            return
        if self._is_looking:  # the engine may take longer to answer than agents wait to be looked at again
            return
        agent.checked = now
        if not self._due:
            self._loop.call_soon(self._look)
        self._due.append(agent)

    def _look(self) -> None:
        """Ask about all agents that are due, with one question to the engine."""
        due, self._due = self._due, []
        self._is_looking = True

        def ask() -> None:
            found = self._engine.look_at([agent.job for agent in due])
            self._loop.call_soon(lambda: self._looked(due, found))

        self._engine.in_thread(ask)

    def _looked(self, due: Sequence[AgentRecord], found: Mapping[str, tuple[JobStatus, str]]) -> None:
        self._is_looking = False
        for agent in due:
            if agent.job in found:
                self._seen(agent, *found[agent.job])

    def dial(self, agent: AgentRecord) -> None:
        """Dial an agent that waits for the launcher."""
        agent.dialling = True
        self._engine.in_thread(lambda: self._dial(agent))

    def _seen(self, agent: AgentRecord, status: JobStatus, said: str) -> None:
        if not self._port.expects(agent):
            return
        now = time.monotonic()
        if status.state in (JobState.ENDED, JobState.LOST):
            self._ended(agent, status, said)
        elif status.hopeless and now - agent.submitted > _PATIENCE_S:
            words = f"its job {agent.job} will never run: {status.reason}"
            self._port.lost(agent, words, hopeless=True, cause=status.reason)
        elif status.state is JobState.PENDING:
            if status.reason and status.reason != agent.said and now - agent.submitted > _PATIENCE_S:
                self._waits(agent, status.reason)
        else:
            agent.running_since = agent.running_since or now
            self._runs(agent, said, now)

    def _waits(self, agent: AgentRecord, reason: str) -> None:
        """Report that a job waits; jobs with the same reason are reported together."""
        agent.said = reason
        alike = self._waiting.setdefault(reason, [])
        alike.append(agent)
        if len(alike) == 1:
            self._loop.call_later(_GATHER_S, partial(self._report_waits, reason))

    def _report_waits(self, reason: str) -> None:
        waiting = [agent for agent in self._waiting.pop(reason) if self._port.expects(agent) and agent.said == reason]
        if waiting:
            first, *others = waiting
            whose = f" and {counted(len(others), 'other')} wait" if others else " waits"
            self._port.happened(f"{first.id} (job {first.job}){whose}: {reason}")

    def _ended(self, agent: AgentRecord, status: JobStatus, said: str) -> None:
        if status.hopeless:
            words = f"its job {agent.job} could not begin: {status.reason}"
            self._port.lost(agent, words, hopeless=True, cause=status.reason)
            return
        not_run = self._engine.python if status.exit_code in _NO_PYTHON else ""
        if advice := remedy_for(said, not_run):  # the traceback says no more, and every host of this kind repeats it
            last = _NO_SUCH_OPTION if _NO_SUCH_OPTION in said else said.rstrip().rpartition("\n")[2].strip()
            words = f"its job {agent.job} ended before it was up: {last or 'it said nothing'}. {advice}"
            self._port.lost(agent, words, hopeless=True, cause=last)
            return
        reason = f" ({status.reason})" if status.reason else ""
        what = f"ended with exit code {status.exit_code}" if status.exit_code is not None else "is gone"
        words = f"its job {agent.job} {what}{reason} before it was up. It said: {said or 'nothing'}"
        self._port.lost(agent, words, hopeless=status.exit_code in _FATAL)

    def _runs(self, agent: AgentRecord, said: str, now: float) -> None:
        waits = LISTENS.search(said)
        if waits:
            agent.dialled, agent.board = True, (waits[1].strip("[]"), int(waits[2]))
            agent.said = waits[3] or ""
            if agent.said:
                self._port.happened(f"{agent.id}: {agent.said}; the launcher dials it instead")
        if agent.dialled:
            self.dial(agent)
        elif agent.running_since is not None and now - agent.running_since > _AGENT_START_S:
            words = f"it was not up {_AGENT_START_S:.0f} s after its job had begun. It said: {said or 'nothing'}"
            self._port.lost(agent, words)

    def reach_board(self, agent: AgentRecord, ticket: str, timeout_s: float) -> Socket:
        """Connect to the relay of an agent that has to be dialled; in a thread that may block.

        Raises:
            TransportError, EngineError: the relay cannot be reached.
        """
        return join(agent.board or UnixAddress(self._engine.door(agent.job)), ticket, timeout_s)

    def _dial(self, agent: AgentRecord) -> None:
        """Dial an agent that waits for the launcher; in a thread."""
        # An agent with a relay has said that it waits there; one that is reached through the engine may only be
        # starting its job.
        deadline = time.monotonic() + (_BOARD_S if agent.board else _AGENT_START_S)
        why = ""
        while time.monotonic() < deadline and self._port.expects(agent):
            try:
                sock = self.reach_board(agent, agent.launcher_ticket, _TRY_S if agent.board else 5.0)
                certificate = agent.certificate if agent.board else None
                tls = TlsAddress(*agent.board, certificate.fingerprint) if agent.board and certificate else None
                shown = Credentials(self._home.run_id, LAUNCHER, agent.launcher_secret)
                link = dial_over(sock, tls, shown, CONTROL, passport=self._home.passport)
            except (TransportError, EngineError, OSError) as error:
                if isinstance(error, TransportRefused) and error.reason:  # it would say the same again
                    words = f"its job {agent.job} refused the launcher: {error.reason}"
                    self._loop.call_soon(partial(self._refused, agent, words))
                    return
                if not why and agent.board:
                    self._loop.call_soon(partial(self._port.happened, self._obstacle(agent, error)))
                why = str(error)
                if self._engine.has_ended(agent.job):
                    break
                time.sleep(0.1)
                continue
            self._loop.call_soon(partial(self._port.linked, agent, link))
            return
        if agent.board:
            failure = (
                f"{agent.said}. Nor in the other direction: {why}. Open one of the two, or move the launcher to where "
                "the hosts are with `ropewalk submit`"
            )
        else:
            failure = f"the launcher could not reach it at the engine's door: {why}"
        self._loop.call_soon(lambda: self._never_met(agent, failure))

    def _refused(self, agent: AgentRecord, words: str) -> None:
        if self._port.expects(agent):
            self._port.lost(agent, words, hopeless=True)

    def _obstacle(self, agent: AgentRecord, error: Exception) -> str:
        from ropewalk.transport.probe import unreached  # only a run with such a host imports it

        assert agent.board
        return unreached(*agent.board, error, _TRY_S).explain("the launcher", agent.id)

    def _never_met(self, agent: AgentRecord, why: str) -> None:
        agent.dialling = False
        if not self._port.expects(agent):
            return

        def ask() -> None:
            status, said = self._engine.look(agent.job) or (JobStatus(JobState.RUNNING), "")
            self._loop.call_soon(lambda: self._not_met(agent, why, status, said))

        self._engine.in_thread(ask)

    def _not_met(self, agent: AgentRecord, why: str, status: JobStatus, said: str) -> None:
        if not agent.board and status.state in (JobState.ENDED, JobState.LOST):  # it never listened at its door
            self._ended(agent, status, said)
            return
        words = " ".join(filter(None, (f"{why}.", status.reason)))
        if not agent.board:
            words += f" It said: {said or 'nothing'}"
        self._port.lost(agent, words, hopeless=agent.board is not None)


def remedy_for(said: str, not_run: str = "") -> str:
    """Return advice for an agent whose Python is of another version, or lacks a package; empty if neither is known.

    Args:
        said: the output of the agent before it was up, when it has run no code of the user.
        not_run: the path of its Python, if the shell of the job could not run it.
    """
    if not_run:
        return (
            f"There is no Python at {not_run} on that host, or this user may not run it: set the option `python` of "
            f"the engine to a Python {OUR_PYTHON} with Ropewalk"
        )
    version = "older than 3.11" if _NO_SUCH_OPTION in said else version_told(said) or OUR_PYTHON
    if version != OUR_PYTHON:
        return (
            f"That Python is {version}, and the launcher runs {OUR_PYTHON}; code only travels between equal minor "
            f"versions: set the option `python` of the engine to a Python {OUR_PYTHON} with Ropewalk"
        )
    missing = re.search(r"No module named '?(\w+)", said)
    if missing is None:
        return ""
    return (
        f"That Python has no {missing[1]}: install Ropewalk there (pip install ropewalk=={VERSION}), or set the option "
        "`python` of the engine to an interpreter that has it. `ropewalk doctor --engine NAME` looks at every host"
    )
