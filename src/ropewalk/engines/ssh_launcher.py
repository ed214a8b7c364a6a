"""A launcher that is submitted over ssh: its job outlives the connection, and later connections ask for it.

    submit ── ssh ── keeper ── forks ─▶ keeper of its own ── ropewalk.cli.submitted ── launcher ── ssh ══ hosts
    ps, logs, attach, stop ── ssh ── keeper ── reads the state folder there

What is asked is the same as of the job of a cluster manager: its state, its output, to end. The name of the job follows
from the run, so an order that is sent again, because its answer was lost with the connection, starts nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any, cast

from ropewalk.engines import keeper, ssh_checks
from ropewalk.engines.engine import JobSpec, JobState, JobStatus
from ropewalk.engines.ssh_command import AT_ONCE, SshOptions
from ropewalk.engines.ssh_connection import SshConnection
from ropewalk.errors import EngineError
from ropewalk.interpreters import import_environment, module_command

_KEPT_BYTES = 1 << 20
"""How much of an output is remembered, so that what was shown of it is found again."""
_REACH_S = 30.0
"""Beside the time for connecting: what checking the hosts takes from there."""


def is_launcher(id: str) -> bool:
    """Return whether the id of a job is that of a submitted launcher."""
    return id.rpartition("/")[2].startswith(keeper.KEPT)


def start(connect: Callable[[], SshConnection], spec: JobSpec, run_id: str, request_id: str) -> str:
    """Start a launcher, and return the name of its job; a second connection is tried if the first breaks.

    Raises:
        EngineError: it could not be started, or this is not known.
    """
    name = keeper.KEPT + hashlib.sha256(f"{run_id}/{request_id}".encode()).hexdigest()[:16]
    order = {
        "job": name,
        "run": run_id,
        "command": list(spec.command),
        "environment": dict(spec.environment),
        "stdin": base64.b64encode(spec.stdin).decode(),
        "time_limit_s": spec.time_limit_s,
    }
    connection = connect()
    try:
        connection.ask("detach", **order)
    except EngineError as error:
        if not connection.gone:
            raise
        try:
            connect().ask("detach", **order)
        except EngineError:
            raise EngineError(
                f"{error}. Whether the launcher has started is not known: when the host can be reached, "
                f"`ropewalk stop {run_id} --engine ssh` ends it"
            ) from error
    return name


def status(connection: SshConnection, name: str) -> JobStatus:
    """Return the status of a launcher.

    Raises:
        EngineError: its host does not answer.
    """
    match connection.ask("state", job=name):
        case {"state": "running"}:
            return JobStatus(JobState.RUNNING)
        case {"state": "ended", "code": int(code), "why": str(why)}:
            return JobStatus(JobState.ENDED, code, why)
        case {"state": "lost"}:
            reason = f"{connection.host.entry} was restarted, or ends a user's processes at logout (KillUserProcesses)"
            return JobStatus(JobState.LOST, reason=reason)
        case _:
            return JobStatus(JobState.LOST, reason=f"{connection.host.entry} has no record of it")


def end(connection: SshConnection, name: str) -> None:
    """Kill a launcher, and remove its record."""
    connection.ask("forget", job=name)


class LauncherOutput:
    """The output of a launcher, of which only what is new is fetched."""

    def __init__(self) -> None:
        self._position = 0
        self._text = bytearray()

    def read(self, connection: SshConnection, name: str) -> str:
        """Return the last part of the output.

        Raises:
            EngineError: its host does not answer, or has no record of it.
        """
        answer = connection.ask("output", job=name, after=self._position)
        try:
            position, data = cast("tuple[int, str]", answer)
            self._position, new = int(position), base64.b64decode(data)
        except (TypeError, ValueError, OverflowError) as error:
            raise EngineError(f"{connection.host.entry} sends what no keeper sends as an output: {error}") from error
        self._text += new
        del self._text[:-_KEPT_BYTES]
        return self._text.decode(errors="replace")


def check(connection: SshConnection, options: Mapping[str, object], ours: SshOptions, logger: logging.Logger) -> None:
    """Check that a launcher on a host can use the engine; hosts that it cannot use are logged, if it can use others.

    Args:
        connection: to the host of the launcher.
        options: of the engine, as the launcher there gets them.
        ours: the options of the engine here.
        logger: is told of hosts that it will do without.

    Raises:
        EngineError: Ropewalk is not installed there, or no host can be used from there.
    """
    entry = connection.host.entry
    installed = ssh_checks.version(connection)
    if not installed.ok:
        raise EngineError(f"a launcher cannot start on {entry}: {installed.detail}")
    reached = _ask_there(connection, options, ours)
    for host, why in reached["failures"].items():
        logger.warning("a launcher on %s will go on without the host %s: %s", entry, host, why)
    if reached["num_usable"] == 0:
        first = next(iter(reached["failures"].values()), "")
        raise EngineError(
            f"a launcher on {entry} could use none of the hosts: {first.rstrip('.')}. It sees the names, keys and "
            f"~/.ssh of {entry}, not those of this machine: install a key there that the hosts accept (its own sshd "
            "too, if it is one of them), or name a configuration on it with the option launcher_config_file, or "
            "another host with launcher"
        )


def _ask_there(connection: SshConnection, options: Mapping[str, object], ours: SshOptions) -> dict[str, Any]:
    """Return what `ssh_reach` finds on a host."""
    name = keeper.MARK + secrets.token_hex(8)
    rounds = math.ceil(len(ours.hosts) / AT_ONCE)
    limit_s = _REACH_S + 2 * ours.connect_timeout * rounds
    connection.ask(
        "start",
        job=name,
        run="",
        command=module_command(connection.facts["executable"], "ropewalk.engines.ssh_reach"),
        environment=import_environment(),
        door=False,
        stdin=base64.b64encode(json.dumps(dict(options), default=str).encode()).decode(),
        time_limit_s=limit_s,
    )
    connection.wait_for_end(name, limit_s)
    ending = connection.endings.get(name)
    said = ending.log.strip().splitlines() if ending else []
    try:
        found = json.loads(said[-1])
        return {"failures": dict(found["failures"]), "num_usable": int(found["num_usable"])}
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        why = f"nothing within {limit_s:g} s"
        if ending:
            why = f"{ending.reason or f'exit code {ending.code}'}, {said[-1] if said else 'without a word'}"
        raise EngineError(f"{connection.host.entry} does not say which hosts it reaches: {why}") from None
