"""The options of the ssh engine, and the `ssh` command lines that follow from them.

Command lines are lists of words, never a shell line. The one text that a shell reads is the line that `ssh` passes to
the login shell on the host; only the path of Python in it is not our own, and it is quoted.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass, field

_HOST = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9_.+-]*\$?)@)?"
    r"(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*|\[?(?P<ipv6>[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[A-Za-z0-9_.-]+)?)\]?)"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
"""[user@]host[:port]; an IPv6 address with a port is in brackets. No part may begin with `-`, which `ssh` would take
for an option, or hold special characters of a shell: `ProxyCommand` puts the host into a shell line."""
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*\$?")
_BOOT = (
    "import sys; del sys.path[0]; "
    'sys.stdout.write("\\n{hello} %d.%d\\n" % sys.version_info[:2]); sys.stdout.flush(); '
    "sys.argv[1:] = [{silence}]; f = sys.stdin.buffer; exec(f.read(int(f.readline())))"
)
"""Reads the keeper from its standard input and becomes it. Nothing in it needs quoting twice in any login shell; the
current folder is removed from the path, because a file in it could hide a module of the standard library."""
AT_ONCE = 32
"""The number of hosts that are connected to at the same time."""
HELLO = "ropewalk-keeper on python"
"""Begins the first line of ours; a greeting of the login shell may come before it, and need not end its last line."""


@dataclass(frozen=True)
class SshOptions:
    """The options of the ssh engine."""

    hosts: list[str] = field(default_factory=list[str])
    """Where jobs run: `host`, `user@host`, `user@host:port`, or aliases of OpenSSH's configuration."""
    user: str = ""
    """The user on hosts that name none; OpenSSH's own choice if empty."""
    port: int | None = None
    """The port of hosts that name none; OpenSSH's own choice if None."""
    identity_file: str = ""
    """The private key to use; if empty, those of the ssh agent and of OpenSSH's configuration."""
    config_file: str = ""
    """A configuration to read instead of ~/.ssh/config and the system's."""
    python: str = ""
    """The interpreter on the hosts, of this minor version, with Ropewalk; `~/` is the home folder on the host.

    If empty, the path of the launcher's interpreter: right for a shared home and for machines that are set up alike.
    """
    launcher: str = ""
    """The host on which `ropewalk submit` starts the launcher, written as in `hosts`; the first of them if empty."""
    launcher_config_file: str = ""
    """The configuration that ssh reads on that host for a submitted launcher, instead of ~/.ssh/config there."""
    connect_timeout: int = 10
    """Seconds in which a host has to answer."""
    server_alive_interval: int = 2
    """Seconds between heartbeats, which are sent in both directions."""
    server_alive_count_max: int = 5
    """The number of unanswered heartbeats after which the connection is closed here, and its jobs end on the host."""

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: an option is invalid; the message says which, and what it has to be.
        """
        if not self.hosts:
            raise ValueError('`hosts` is empty; list the machines to use, as in hosts = ["10.0.0.1", "user@10.0.0.2"]')
        for number, entry in enumerate(self.hosts):
            Host.parse(entry)
            if entry in self.hosts[:number]:
                raise ValueError(f"the host {entry!r} is listed twice")
        if self.launcher:
            Host.parse(self.launcher)
        if self.user and not _USER.fullmatch(self.user):
            raise ValueError(f"`user` must be a user's name, not {self.user!r}")
        if self.port is not None and not 1 <= self.port <= 65535:
            raise ValueError(f"`port` must be from 1 to 65535, not {self.port}")
        for name in ("connect_timeout", "server_alive_interval", "server_alive_count_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be 1 or more, not {getattr(self, name)}")
        for name in ("identity_file", "config_file", "launcher_config_file", "python"):
            if any(not sign.isprintable() for sign in getattr(self, name)):
                raise ValueError(f"`{name}` must be a path, not {getattr(self, name)!r}")

    @property
    def launcher_host(self) -> str:
        """The host of a launcher that is submitted."""
        return self.launcher or self.hosts[0]

    @property
    def silence_s(self) -> float:
        """Seconds of silence after which a connection is closed."""
        return float(self.server_alive_interval * self.server_alive_count_max)

    @property
    def interpreter(self) -> str:
        """The Python interpreter on the hosts."""
        return self.python or sys.executable


@dataclass(frozen=True)
class Host:
    """An entry of the option `hosts`, parsed."""

    entry: str
    name: str
    user: str = ""
    port: int | None = None

    @classmethod
    def parse(cls, entry: str) -> Host:
        """Parse an entry of `hosts`.

        Raises:
            ValueError: the text is not a valid entry, or is ambiguous.
        """
        match = _HOST.fullmatch(entry)
        port = int(match["port"]) if match and match["port"] else None
        if match is None or (port is not None and not 1 <= port <= 65535):
            raise ValueError(f"each of `hosts` is written [user@]name[:port] or [user@][IPv6]:port, not {entry!r}")
        return cls(entry, match["ipv6"] or match["name"], match["user"] or "", port)


def connection(host: Host, options: SshOptions, control: str) -> list[str]:
    """Return the command that connects to a host, runs the keeper, and listens at `control` for forwarding requests."""
    words = ["ssh", "-T", "-a", "-x"]
    words += ["-F", options.config_file] if options.config_file else []
    words += ["-i", options.identity_file, "-o", "IdentitiesOnly=yes"] if options.identity_file else []
    user, port = host.user or options.user, host.port or options.port
    words += ["-l", user] if user else []
    words += ["-p", str(port)] if port else []
    for setting in (
        "BatchMode=yes",  # never prompt: no user would see the question
        f"ConnectTimeout={options.connect_timeout}",
        f"ServerAliveInterval={options.server_alive_interval}",
        f"ServerAliveCountMax={options.server_alive_count_max}",
        "ControlMaster=yes",
        "ControlPersist=no",  # a master that persists would outlive this process
        f"ControlPath={control}",
        "StreamLocalBindUnlink=yes",
        "StreamLocalBindMask=0177",
        # Settings that an alias may have in its configuration for interactive logins.
        "ClearAllForwardings=yes",
        "RemoteCommand=none",
        "PermitLocalCommand=no",
    ):
        words += ["-o", setting]
    return [*words, "--", host.name, remote_line(options)]


def forward(control: str, local: str, remote: str, *, cancel: bool = False) -> list[str]:
    """Return the command that asks a connection to forward a local unix socket to one on its host, or to stop."""
    return [
        "ssh",
        "-F",
        "none",
        "-S",
        control,
        "-O",
        "cancel" if cancel else "forward",
        "-L",
        f"{local}:{remote}",
        "host",
    ]


def remote_line(options: SshOptions) -> str:
    """Return the line that the login shell on the host runs."""
    python = options.interpreter
    home, rest = ("~/", python[2:]) if python.startswith("~/") else ("", python)
    boot = _BOOT.format(hello=HELLO, silence=f'"{options.silence_s:g}"')
    return f"exec {home}{shlex.quote(rest)} -c {shlex.quote(boot)}"
