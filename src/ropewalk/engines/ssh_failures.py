"""Explains failures of `ssh`: what happened, and what to do next."""

from __future__ import annotations

import re
import shlex

from ropewalk.engines.ssh_command import Host, SshOptions
from ropewalk.last_line import last_line

_SSH_FAILED = 255
"""The exit status of ssh itself; any other is that of the program on the host."""
_NOT_FOUND, _NOT_ALLOWED = 127, 126
"""The exit status of a shell that does not find a program, and of one that may not run it."""

_TURNED_AWAY = r"Connection closed|Connection reset|kex_exchange_identification"
_MEANINGS = [
    (
        r"Could not resolve hostname",
        "its name does not resolve",
        "use its IP address, or name it in {config} with `HostName`",
    ),
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is not the one that is known: it was set up again, or somebody is in between",
        "if it was set up again, remove the old key with `{forget}` and accept the new one with `{login}`",
    ),
    (
        r"Host key verification failed|No .* host key is known",
        "its host key is not known here",
        "compare and accept it once with `{login}`",
    ),
    (
        r"UNPROTECTED PRIVATE KEY FILE|bad permissions",
        "the private key can be read by others, so ssh does not use it",
        "`chmod 600` the key",
    ),
    (
        r"Permission denied \((?![^)]*publickey)",
        "a key is not enough for it: it asks for a password or a code, which nobody can type here",
        "use hosts that accept a key alone (`PubkeyAuthentication` in their sshd_config), or start the run on a host "
        "that they accept",
    ),
    (
        r"Permission denied \(|Permission denied, |Too many authentication failures|No supported authentication",
        "permission denied: it does not accept our key",
        "try `{login}`; set `identity_file` and `user`, load a key that has a passphrase with `ssh-add`, or install "
        "the key there with `ssh-copy-id`",
    ),
    (
        r"Connection refused",
        "it is there, but nobody listens at port {port}",
        "start sshd there, or set `port`",
    ),
    (
        r"No route to host|Network is unreachable|timed out|not responding",
        "it cannot be reached",
        "see whether it is up and its port {port} is open to this machine, or take it off `hosts`",
    ),
    (
        _TURNED_AWAY,
        "its sshd hung up before it asked for a key",
        "look at the log of sshd there; `MaxStartups`, `AllowUsers` and full disks are the usual reasons",
    ),
    (
        r"[Bb]ad configuration option|Can't open user config file|[Bb]ad owner or permissions",
        "the configuration of ssh is refused",
        "fix {config}",
    ),
]
"""A message of ssh, its meaning, and advice; the first match counts. For words in braces see `explain`."""
_FORCED = "a `ForceCommand` of sshd or `command=` of our key there"
_CHANGED = re.compile(r"^Host key for (\S+) has changed", re.MULTILINE)
_OFFENDING = re.compile(r"^Offending .*?key in (.+):\d+\s*$", re.MULTILINE)
"""The name of a host in a list of known keys, which has a port that is not 22, and the file with the list."""


def explain(host: Host, options: SshOptions, code: int | None, said: str) -> str:
    """Explain why a connection could not be made, or ended.

    Args:
        host: the host of the connection.
        options: the options of the engine.
        code: the exit status of ssh; None if ssh was ended because the connection was silent.
        said: the standard error of ssh, and of the host if Python did not start there.

    Returns:
        The explanation, with advice.
    """
    words = said.strip().splitlines()
    last = f" ssh said: {words[-1].strip()}" if words else ""
    if code == _NOT_FOUND:
        return (
            f"there is no Python at {options.interpreter} on {host.entry}; install it there, or set `python` in "
            f"[engines.ssh] to the interpreter of an environment with Ropewalk.{last}"
        )
    if code == _NOT_ALLOWED:
        return (
            f"{options.interpreter} on {host.entry} may not be run by this user; set `python` in [engines.ssh].{last}"
        )
    for sign, meaning, remedy in _MEANINGS:
        if re.search(sign, said):
            facts = {
                "name": host.name,
                "port": host.port or options.port or 22,
                "config": options.config_file or "~/.ssh/config",
                "login": _login(host, options),
                "forget": _forget(host, said),
            }
            return f"the host {host.entry} is of no use: {meaning.format(**facts)}; {remedy.format(**facts)}.{last}"
    if code == 0:
        return (
            f"the login shell on {host.entry} ended without running {options.interpreter}; look at its start-up files "
            f"(~/.bashrc and the like) and at {_FORCED}, and try `{_login(host, options)} true`.{last}"
        )
    if code is None:
        return f"the host {host.entry} has fallen silent; see whether it is up and its network whole.{last}"
    return f"the connection to {host.entry} ended with status {code}; try `{_login(host, options)}`.{last}"


def is_turned_away(code: int | None, said: str) -> bool:
    """Return whether sshd hung up before it asked for a key, as it does with `MaxStartups`: later it may not.

    Args:
        code: the exit status of ssh; None if ssh was ended.
        said: the standard error of ssh.
    """
    first = next((sign for sign, _, _ in _MEANINGS if re.search(sign, said)), None)
    return code == _SSH_FAILED and first == _TURNED_AWAY


def no_python(host: Host, options: SshOptions, timeout_s: float, said: str) -> str:
    """Explain why a host is refused whose login shell has not started Python."""
    words = f" It said: {last_line(said)}" if said.strip() else ""
    return (
        f"{host.entry} accepted us, but {options.interpreter} did not start within {timeout_s:g} s there. A start-up "
        f"file of the login shell (~/.bashrc and the like), or {_FORCED}, may wait for input or start another program, "
        "or the file system of the interpreter may hang: "
        f"try `{_login(host, options)} {options.interpreter} -V`.{words}"
    )


def wrong_python(host: Host, options: SshOptions, theirs: str, ours: str) -> str:
    """Explain why a host with another minor version of Python is refused."""
    return (
        f"{options.interpreter} on {host.entry} is Python {theirs}, and the launcher runs {ours}; objects do not "
        f"travel between them. Set `python` in [engines.ssh] to a Python {ours} there, or start the launcher "
        f"with {theirs}"
    )


def no_forwarding(host: Host, said: str) -> str:
    """Explain why a host whose sshd does not forward unix sockets is refused."""
    words = f" ssh said: {last_line(said)}" if said.strip() else ""
    return (
        f"sshd on {host.entry} carries no connections to unix sockets, on which links of Ropewalk run. Put "
        "`AllowStreamLocalForwarding yes` (and no `DisableForwarding yes`) into its sshd_config, or for this user into "
        "a `Match User` block, and reload sshd; a server older than OpenSSH 6.7 has to be renewed. The key in "
        f"authorized_keys must not say `restrict` or `no-port-forwarding`.{words}"
    )


def _login(host: Host, options: SshOptions) -> str:
    words = ["ssh"]
    words += ["-F", options.config_file] if options.config_file else []
    words += ["-i", options.identity_file] if options.identity_file else []
    words += ["-p", str(port)] if (port := host.port or options.port) else []
    user = host.user or options.user
    return shlex.join([*words, f"{user}@{host.name}" if user else host.name])


def _forget(host: Host, said: str) -> str:
    """Return the command that removes the known key of a host, from the file in which ssh says that it is."""
    file, name = _OFFENDING.search(said), _CHANGED.search(said)
    words = ["-f", file[1]] if file else []
    return shlex.join(["ssh-keygen", *words, "-R", name[1] if name else host.name])
