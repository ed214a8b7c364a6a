"""Addresses: where a process can be reached, as text that travels.

`unix:/run/user/0/ropewalk-x/launcher` on one host, `tls:10.0.0.1:4711` or
`tls:[::1]:4711` between hosts. Hosts are always IP addresses: names resolve
differently on different machines.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A unix domain socket of this host."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TlsAddress:
    """A TCP port that speaks mutual TLS."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"tls:[{self.ip}]:{self.port}" if ":" in self.ip else f"tls:{self.ip}:{self.port}"


Address = UnixAddress | TlsAddress


def parse_address(text: str) -> Address:
    """Read an address back from its text.

    Raises:
        ValueError: the text is no address, or names a host by name.
    """
    scheme, _, rest = text.partition(":")
    if scheme == "unix" and rest.startswith("/"):
        return UnixAddress(rest)
    if scheme == "tls":
        host, _, port = rest.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        try:
            return TlsAddress(str(ipaddress.ip_address(host)), int(port))
        except ValueError:
            pass
    raise ValueError(f"{text!r} is not an address; write unix:/PATH or tls:IP:PORT (an IP address, not a name)")
