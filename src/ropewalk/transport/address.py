"""Addresses: where a process can be reached, as text that travels.

`unix:/run/user/0/ropewalk-x/launcher` on one host, `tls:10.0.0.1:4711/3f2a…` or `tls:[::1]:4711/3f2a…` between hosts.
Hosts are always IP addresses: names resolve differently on different machines. The part after the slash is the
fingerprint of the certificate that answers there, so that another process that took over the port is not mistaken for
the intended one.

In a run with several hosts an address names the host as well, and all routes to the process:
`at:agent-2|unix:/tmp/ropewalk-x/n7.sock|tls:10.0.0.3:4711/3f2a…`. Without the last part, the process can be reached
through agents only.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re

import msgspec


class UnixAddress(msgspec.Struct, frozen=True):
    """A unix domain socket of this host."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


class TlsAddress(msgspec.Struct, frozen=True):
    """A TCP port that speaks mutual TLS."""

    ip: str
    port: int
    fingerprint: str
    """SHA-256 of the certificate of the process that listens there, 64 hexadecimal digits."""

    def __str__(self) -> str:
        host = f"[{self.ip}]" if ":" in self.ip else self.ip
        return f"tls:{host}:{self.port}/{self.fingerprint}"


class HostAddress(msgspec.Struct, frozen=True):
    """A process on a host of the run: a unix socket for its host, and perhaps a TLS port for all others."""

    host: str
    """The id of the agent of that host, or "launcher"."""
    unix: UnixAddress
    tls: TlsAddress | None = None

    def __str__(self) -> str:
        return "|".join([f"at:{self.host}", str(self.unix), *([str(self.tls)] if self.tls else [])])


_TLS = re.compile(r"(\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<v4>[0-9.]+)):(?P<port>[0-9]{1,5})/(?P<fingerprint>[0-9a-f]{64})")

Address = UnixAddress | TlsAddress | HostAddress


def parse_address(text: str) -> Address:
    """Parse an address from its text.

    Raises:
        ValueError: the text is not an address, or contains a host name instead of an IP address.
    """
    scheme, _, rest = text.partition(":")
    if scheme == "at":
        host, _, ways = rest.partition("|")
        unix_text, _, tls_text = ways.rpartition("|tls:") if "|tls:" in ways else (ways, "", "")
        unix = parse_address(unix_text)
        tls = parse_address(f"tls:{tls_text}") if tls_text else None
        if host and isinstance(unix, UnixAddress) and (tls is None or isinstance(tls, TlsAddress)):
            return HostAddress(host, unix, tls)
    if scheme == "unix" and rest.startswith("/") and "\0" not in rest:
        return UnixAddress(rest)
    match = _TLS.fullmatch(rest) if scheme == "tls" else None
    if match:
        port = int(match["port"])
        with contextlib.suppress(ValueError):
            if 0 < port < 65536:
                return TlsAddress(str(ipaddress.ip_address(match["v6"] or match["v4"])), port, match["fingerprint"])
    raise ValueError(
        f"{text!r} is not an address; write unix:/PATH or tls:IP:PORT/FINGERPRINT "
        "(an IP address, not a name; IPv6 in brackets; 64 hexadecimal digits)"
    )
