"""Looks up the IP addresses of hosts that a cluster manager names.

The system's own `getent` does this in a separate process, with a timeout: otherwise a resolver that does not answer
would block an engine for ever, and engines do not use sockets.
"""

from __future__ import annotations

import ipaddress
import re
import subprocess


def resolve(host: str, timeout_s: float = 5.0) -> list[str]:
    """Return all addresses of a host, which may be an address itself; none if its name cannot be resolved here.

    Example:
        >>> resolve("10.0.0.7")
        ['10.0.0.7']
    """
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    if not re.fullmatch(r"\w[\w.-]*", host):
        return []
    try:
        done = subprocess.run(["getent", "ahosts", host], capture_output=True, text=True, timeout=timeout_s, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.split()[0] for line in done.stdout.splitlines() if line.split()[1:2] == ["STREAM"]]
