"""The checks of `ropewalk doctor --engine ssh`, and the test of forwarding before the first door of a host."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from multiprocessing.connection import Client

from ropewalk.engines import keeper
from ropewalk.engines.engine import EngineFinding
from ropewalk.engines.ssh_connection import SshConnection
from ropewalk.engines.ssh_failures import no_forwarding
from ropewalk.errors import EngineError
from ropewalk.quantities import shown_size
from ropewalk.version import VERSION

_SKEW_S = 60.0
"""The difference between clocks that certificates and leases tolerate."""
_ROOM_BYTES = 64 << 20
_TRIAL_S = 10.0
_ANSWERER = (
    "import os; from multiprocessing.connection import Listener\n"
    "with Listener(os.environ['ROPEWALK_DOOR'], 'AF_UNIX') as listener:\n"
    "    print('listens', flush=True)\n"
    "    with listener.accept() as connection:\n"
    "        connection.send_bytes(b'carried')\n"
)
"""Runs on the host: answers one connection to a socket, then ends. Its parent ends it if no connection comes."""
_SENT = len(b"carried").to_bytes(4, "big") + b"carried"
"""What it sends, with the length before it."""


def client() -> EngineFinding:
    """Check whether this machine has an ssh."""
    try:
        done = subprocess.run(["ssh", "-V"], capture_output=True, text=True, timeout=_TRIAL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return EngineFinding("ssh", False, f"{error}; install the client of OpenSSH, or put it on the PATH")
    return EngineFinding("ssh", done.returncode == 0, done.stderr.strip() or "it says nothing of its version")


def of_host(connection: SshConnection) -> list[EngineFinding]:
    """Check a host that is connected."""
    facts, entry = connection.facts, connection.host.entry
    skew_s = connection.clock_skew_s
    free = facts["free"]
    return [
        EngineFinding(f"host {entry}", True, f"{facts['name']}, {facts['cpus']} CPUs, {shown_size(facts['memory'])}"),
        version(connection),
        EngineFinding(
            f"space in {keeper.FOLDER} on {entry}",
            free > _ROOM_BYTES,
            f"{shown_size(free)} free" + ("" if free > _ROOM_BYTES else "; make room"),
        ),
        EngineFinding(
            f"clock of {entry}",
            abs(skew_s) < _SKEW_S,
            f"{abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} ours"
            + ("" if abs(skew_s) < _SKEW_S else "; let both follow a time server, as with `timedatectl set-ntp true`"),
        ),
        _forwarding(connection),
    ]


def require_forwarding(connection: SshConnection) -> None:
    """Test once for each connection whether it carries a byte to a unix socket.

    Raises:
        EngineError: it does not; the message says what to change on the host.
    """
    if not connection.carries:
        finding = _forwarding(connection)
        if not finding.ok:
            raise EngineError(finding.detail)


def version(connection: SshConnection) -> EngineFinding:
    """Check the version of Ropewalk; Python has our minor version, or there would be no connection."""
    facts = connection.facts
    python, theirs = facts["executable"], connection.ask("version")
    detail = (
        f"{python} {'.'.join(map(str, sys.version_info[:2]))} has {f'Ropewalk {theirs}' if theirs else 'no Ropewalk'}"
    )
    if theirs != VERSION:
        detail += (
            f", and here it is {VERSION}; run `{python} -m pip install ropewalk=={VERSION}` there, or set `python`"
        )
    return EngineFinding(f"Python on {connection.host.entry}", theirs == VERSION, detail)


def _forwarding(connection: SshConnection) -> EngineFinding:
    what = f"doors of {connection.host.entry}"
    name = keeper.MARK + secrets.token_hex(8)
    said_before = connection.said
    try:
        path = connection.ask(
            "start",
            job=name,
            run="",
            command=[connection.facts["executable"], "-I", "-c", _ANSWERER],
            environment={},
            door=True,
            stdin="",
            time_limit_s=_TRIAL_S,
        )
        deadline = time.monotonic() + 2 * _TRIAL_S
        while "listens" not in str(connection.ask("log", job=name)) and name not in connection.endings:
            if time.monotonic() > deadline:
                raise EngineError(f"{connection.host.entry} runs no program that was started for a trial")
            connection.wait_for_end(name, 0.01)
        path = connection.socket_of(path)
        door = connection.open_door(name, path)
        try:
            connection.carries = _arrives(door)
        finally:
            connection.shut_door(name, path)
        connection.tell("end", job=name)
        connection.wait_for_end(name, _TRIAL_S)
    except EngineError as error:
        return EngineFinding(what, False, str(error))
    if connection.carries:
        return EngineFinding(what, True, "sshd carries connections to unix sockets")
    return EngineFinding(what, False, no_forwarding(connection.host, connection.said.removeprefix(said_before)))


def _arrives(door: str) -> bool:
    """Return whether the bytes of `_ANSWERER` come through a door; a host that sends others is not waited for."""
    heard, deadline = b"", time.monotonic() + _TRIAL_S
    with contextlib.suppress(OSError), Client(door, "AF_UNIX") as trial:
        os.set_blocking(trial.fileno(), False)
        while len(heard) < len(_SENT) and trial.poll(max(0.0, deadline - time.monotonic())):
            if not (data := os.read(trial.fileno(), len(_SENT))):
                break
            heard += data
    return heard == _SENT
