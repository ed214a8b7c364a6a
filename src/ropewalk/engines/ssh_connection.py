"""One connection to a host: an `ssh` process, and the keeper that it runs on the host.

    engine's threads ── orders ──► outgoing ─┐            ┌─► stdin of ssh ══ keeper
                     ◄─ answers, endings ────┴─ a thread ─┴── stdout of ssh

The thread moves lines, and sends a heartbeat every `server_alive_interval`, because the keeper ends its jobs when
nothing arrives. What a host says is kept only as far as it was asked for: one that was broken into can neither fill our
memory nor say what no keeper says. Private files of the connection, such as the sockets of its doors, are in a folder
that is removed when ssh ends.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.engines import keeper, ssh_command
from ropewalk.engines.ssh_command import Host, SshOptions
from ropewalk.engines.ssh_failures import explain, is_turned_away, no_python, wrong_python
from ropewalk.errors import EngineError
from ropewalk.trusted_files import make_temporary_folder

_SSH_THEN_CLEAN = 'folder=$1; shift; "$@"; code=$?; rm -rf -- "$folder"; exit $code'
"""Removes the folder of a connection when ssh has ended, also if this process has. The words come as arguments."""
_SOCKET_FOLDER = re.compile(r"/[A-Za-z0-9_./-]{0,50}")
"""The path of a socket has at most 107 bytes, of which ssh and the names of doors need some; ssh replaces `%` in it."""
_SOCKET = re.compile(r"/[A-Za-z0-9_./-]{1,106}")
"""The socket paths that are accepted from a host: ssh gives `:`, `%`, `$` and spaces a meaning."""
_CHUNK_BYTES = 64 * 1024
_LINE_BYTES = 16 << 20
"""The longest line that is read from a host, which must not be able to fill our memory."""
_SAID_BYTES = 8 * 1024
_TOLD_CHARACTERS = 64 * 1024
"""Of a text that a keeper tells; it keeps less of a job's output."""
_START_S = 20.0
"""Added to `connect_timeout` for key exchange, login shell and the start of Python on a busy host."""
_ANSWER_S = 10.0
_END_S = 3.0
_NO_ANSWER = 0


_PAUSES_S = (0.5, 1.0, 2.0, 4.0)
"""Before each further attempt at a host whose sshd hung up at once, in seconds; random factors spread the attempts."""


class HostUnfit(EngineError):
    """A host cannot start the job at the moment, and another one may."""


class _TurnedAway(EngineError):
    """The sshd of a host, or of one on the way to it, hung up before it asked for a key."""


def connect(host: Host, options: SshOptions) -> SshConnection:
    """Connect to a host.

    An sshd that has more unauthenticated connections than its `MaxStartups` (10 by default) hangs up on others. That
    happens where many hosts are reached through one (`ProxyJump`), or where several launchers start; so it is tried
    again for a few seconds.

    Raises:
        EngineError: the host cannot be used; the message says what to do.
    """
    for pause_s in _PAUSES_S:
        try:
            return SshConnection(host, options)
        except _TurnedAway:
            time.sleep(pause_s * random.uniform(0.5, 1.5))
    return SshConnection(host, options)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ended, as its keeper reports it."""

    code: int
    reason: str
    log: str


class SshConnection:
    """Connects in the constructor, and can be used until `gone` gives a reason. Any thread may use it."""

    def __init__(self, host: Host, options: SshOptions) -> None:
        """Connect.

        Raises:
            EngineError: the host cannot be used; the message says what to do.
        """
        self.host = host
        self.gone = ""
        """Why the connection ended; empty while it works."""
        self.gone_at = -math.inf
        """When it ended, by the monotonic clock."""
        self.endings: dict[str, Ending] = {}
        """The jobs that have ended on it, by name."""
        self.facts: dict[str, Any] = {}
        """Facts about the host that the keeper reported; see `keeper`."""
        self.doors = threading.Lock()
        """Held while a door is opened: a session opens doors in one thread for each job."""
        self.clock_skew_s = 0.0
        """Seconds by which the host's clock is ahead of ours, accurate to half a round trip."""
        self.carries = False
        """Whether it has carried a connection to a unix socket; see `ssh_checks`."""
        self._options = options
        # Entered instead of the condition, which an interrupt between two of its steps would leave locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self._said = bytearray()
        self._answers: dict[int, dict[str, Any]] = {}
        self._asked: set[int] = set()
        """Numbers of the orders whose answers are waited for."""
        self._started: set[str] = set()
        """The jobs that were started on it, by name."""
        self._number = 0
        self._greeted = self._closing = self._is_turned_away = False
        self._receiving_at = -math.inf
        """When the keeper last said that it is receiving a large order."""
        self._silent_since = time.monotonic()
        if shutil.which("ssh") is None:
            raise EngineError("the command ssh was not found; install the client of OpenSSH, or put it on the PATH")
        self._folder = _private_folder()
        self._control = f"{self._folder}/c"
        self._process = self._run()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        self._thread = threading.Thread(target=self._carry, name=f"ropewalk-ssh-{host.name}", daemon=True)
        self._thread.start()
        self._wait_until_ready()

    @property
    def silent_s(self) -> float:
        """Seconds since the last message from the host."""
        return time.monotonic() - self._silent_since

    @property
    def said(self) -> str:
        """The end of ssh's standard error."""
        return self._said.decode(errors="replace")

    def ask(self, do: str, **order: object) -> Any:
        """Send an order to the keeper and return its answer.

        Raises:
            HostUnfit: the keeper cannot do it on its host.
            EngineError: the keeper refused, or the connection broke or timed out.
        """
        return self.answer(self.order(do, **order))

    def order(self, do: str, **order: object) -> int:
        """Send an order to the keeper, and return its number, for `answer`."""
        with self._lock:
            self._number += 1
            self._asked.add(self._number)
            if do == "start":
                self._started.add(str(order["job"]))
            self._send(do=do, number=self._number, **order)
            return self._number

    def answer(self, number: int) -> Any:
        """Wait for the answer to an order; as `ask`."""
        with self._lock:
            while not self._changed.wait_for(lambda: number in self._answers or self.gone, _ANSWER_S):
                if time.monotonic() - self._receiving_at > _ANSWER_S:
                    break
            answer = self._answers.pop(number, None)
            self._asked.discard(number)
        if answer is None:
            raise EngineError(self.gone or f"{self.host.entry} has not answered for {_ANSWER_S:g} s")
        if answer["news"] == "refused":
            raise (HostUnfit if answer.get("of_host") is True else EngineError)(f"{self.host.entry}: {answer['why']}")
        return answer["answer"]

    def tell(self, do: str, **order: object) -> None:
        """Send an order to the keeper whose answer is dropped."""
        with self._lock:
            self._send(do=do, number=_NO_ANSWER, **order)

    def wait_for_end(self, job: str, timeout_s: float) -> None:
        """Wait until a job has ended, the connection is gone, or `timeout_s` seconds have passed."""
        with self._lock:
            self._changed.wait_for(lambda: job in self.endings or self.gone, timeout_s)

    def socket_of(self, answer: object) -> str:
        """Return the path of a job's socket on the host, from the keeper's answer to the order to start it.

        Raises:
            EngineError: the path is not safe in a command line.
        """
        if not isinstance(answer, str) or not _SOCKET.fullmatch(answer):
            raise EngineError(f"{self.host.entry} sends what no keeper sends as the path of a socket: {answer!r}")
        return answer

    def open_door(self, name: str, remote: str) -> str:
        """Forward a unix socket on this machine to one on the host, and return its path.

        The path on the host becomes visible to all users of this machine, so the job there has to make the socket
        first, in a folder that no other user may enter.

        Args:
            name: the name of the door, unique to this connection.
            remote: the path of the socket on the host.

        Raises:
            EngineError: ssh refused.
        """
        local = f"{self._folder}/{name}"
        command = ssh_command.forward(self._control, local, remote)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S)
            why = done.stderr.strip() if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            why = str(error)
        if why:
            raise EngineError(self.gone or f"ssh opens no door to {remote} on {self.host.entry}: {why}")
        return local

    def shut_door(self, name: str, remote: str) -> None:
        """Stop the forwarding of `open_door`; does nothing if the connection is gone."""
        local = f"{self._folder}/{name}"
        if not self.gone:
            command = ssh_command.forward(self._control, local, remote, cancel=True)
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(command, capture_output=True, timeout=_ANSWER_S)
        with contextlib.suppress(OSError):
            os.unlink(local)

    def hang_up(self) -> None:
        """Begin to end the connection and every job on it."""
        with self._lock:
            self._closing = True
            if not self.gone:
                os.write(self._wake, b".")

    def close(self) -> None:
        """End the connection, and wait until nothing is left of it here; may be called twice."""
        self.hang_up()
        self._thread.join(_END_S if self.silent_s < self._options.server_alive_interval * 2 else 0.1)
        if self._thread.is_alive():
            self._kill()
            self._thread.join()

    def _run(self) -> subprocess.Popen[bytes]:
        command = ssh_command.connection(self.host, self._options, self._control)
        try:
            # A session of its own: Ctrl-C in a terminal is for the launcher, which then ends its jobs in order.
            return subprocess.Popen(
                ["/bin/sh", "-c", _SSH_THEN_CLEAN, "sh", self._folder, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise EngineError(f"cannot start ssh to {self.host.entry}: {error}") from error

    def _wait_until_ready(self) -> None:
        with self._lock:
            timeout_s = self._options.connect_timeout + _START_S
            self._changed.wait_for(lambda: self.facts or self.gone, timeout_s)
            if self.facts and not self.gone:
                return
            why = self.gone or no_python(self.host, self._options, timeout_s, self._heard())
            turned_away = self._is_turned_away
        self.close()
        raise (_TurnedAway if turned_away else EngineError)(why)

    def _heard(self) -> str:
        """Return what the host has said so far, with an incomplete line."""
        return self.said + self._incoming.decode(errors="replace")

    def _send(self, **order: object) -> None:
        self._outgoing += json.dumps(order).encode() + b"\n"
        if not self.gone:
            os.write(self._wake, b".")

    # The thread

    def _carry(self) -> None:
        process = self._process
        assert process.stdin and process.stdout and process.stderr
        os.set_blocking(process.stdin.fileno(), False)
        with selectors.DefaultSelector() as selector:
            for stream in (process.stdout, process.stderr):
                selector.register(stream, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            try:
                why = self._carry_until_gone(selector)
            except BrokenPipeError:  # ssh reports the reason
                why = ""
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1 if why else _END_S)
        self._kill()
        code = process.wait()
        os.set_blocking(process.stderr.fileno(), False)
        self._said += process.stderr.read() or b""
        process.stdout.close()
        process.stderr.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        with self._lock:
            os.close(self._wake)
            os.close(self._woken)
            self._is_turned_away = not (why or self._closing or self._greeted) and is_turned_away(code, self.said)
            self.gone = why or (
                f"the connection to {self.host.entry} was closed"
                if self._closing
                else explain(self.host, self._options, code, self.said)
            )
            self.gone_at = time.monotonic()
            self._changed.notify_all()

    def _carry_until_gone(self, selector: selectors.BaseSelector) -> str:
        """Move messages both ways; returns why the connection ended, or nothing if ssh itself reports it."""
        process = self._process
        assert process.stdin and process.stdout and process.stderr
        beaten = time.monotonic()
        while not (self._closing and not self._outgoing):
            if self.facts and self.silent_s > self._options.silence_s:
                return explain(self.host, self._options, None, self.said)
            if self.facts and time.monotonic() - beaten > self._options.server_alive_interval / 2:
                beaten = time.monotonic()
                self.tell("beat")
            sends = process.stdin in selector.get_map()
            if self._greeted and bool(self._outgoing) != sends:
                if sends:
                    selector.unregister(process.stdin)
                else:
                    selector.register(process.stdin, selectors.EVENT_WRITE)
            for key, _ in selector.select(self._options.server_alive_interval / 4):
                if key.fileobj is process.stdin:
                    with self._lock:
                        del self._outgoing[: os.write(key.fd, self._outgoing[:_CHUNK_BYTES])]
                    continue
                data = os.read(key.fd, _CHUNK_BYTES)
                if key.fileobj is process.stdout:
                    if not data:
                        return ""
                    if why := self._hear(data):
                        return why
                elif key.fileobj is process.stderr:
                    self._said += data
                    del self._said[:-_SAID_BYTES]
                    if not data:
                        selector.unregister(process.stderr)
        return ""

    def _hear(self, data: bytes) -> str:
        self._incoming += data
        self._silent_since = time.monotonic()
        if b"\n" not in data:
            return "" if len(self._incoming) < _LINE_BYTES else f"{self.host.entry} sends what no keeper sends"
        *lines, self._incoming = self._incoming.split(b"\n")
        for line in lines:
            if self._greeted:
                try:
                    self._learn(json.loads(line))
                except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                    return f"{self.host.entry} sends what no keeper sends: {bytes(line[:100])!r} ({error!r})"
            elif line.startswith(ssh_command.HELLO.encode()):
                theirs, ours = line.split()[-1].decode(errors="replace"), "{}.{}".format(*sys.version_info[:2])
                if theirs != ours:
                    return wrong_python(self.host, self._options, theirs, ours)
                self._send_keeper()
            else:  # the greeting of a login shell
                self._said += line + b"\n"
                del self._said[:-_SAID_BYTES]
        return ""

    def _send_keeper(self) -> None:
        source = Path(keeper.__file__).read_bytes()
        with self._lock:
            self._outgoing[:0] = b"%d\n" % len(source) + source
            self._greeted = True

    def _learn(self, news: dict[str, Any]) -> None:
        with self._lock:
            match news["news"]:
                case "ready":
                    self.facts = _facts_of(news["facts"])
                    self.clock_skew_s = self.facts["time"] - time.time()
                case "receiving":
                    self._receiving_at = time.monotonic()
                case "ended":
                    if news["job"] in self._started:
                        ending = Ending(int(news["code"]), _cut(news["why"]), _cut(news["log"]))
                        self.endings.setdefault(news["job"], ending)
                case "done" | "refused" if news["to"] in self._asked:
                    news["answer" if news["news"] == "done" else "why"]  # one that lacks it is none
                    self._answers.setdefault(news["to"], news)
                case _:
                    pass
            self._changed.notify_all()

    def _kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)


def _facts_of(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about a host with the types that they should have.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: a host said something else.
    """
    numbers = {name: int(told[name]) for name in ("cpus", "gpus", "memory", "free")}
    return {name: _cut(told[name]) for name in ("name", "executable")} | numbers | {"time": float(told["time"])}


def _cut(told: object) -> str:
    return str(told)[-_TOLD_CHARACTERS:]


def _private_folder() -> str:
    """Make a folder for sockets, whose paths must be short and plain; only its owner may enter."""
    parents = [folder for folder in (tempfile.gettempdir(), "/tmp") if _SOCKET_FOLDER.fullmatch(folder)]
    return str(make_temporary_folder("rw-ssh-", parents))
