"""The network addresses of this host: which of them to listen on."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from ropewalk.errors import SettingsError


def listen_on(ip: str, port: int, *, backlog: int) -> socket.socket:
    """A listening TCP socket on one address of this host; port 0 chooses a free one.

    Raises:
        SettingsError: the address means "every network that this host is on".
        OSError: the address cannot be bound.
        ValueError: it is no IP address.
    """
    bind_to = ipaddress.ip_address(ip)
    plain = getattr(bind_to, "ipv4_mapped", None) or bind_to
    if plain.is_unspecified or plain.is_multicast:
        raise SettingsError(
            f"a run does not listen on {ip}, which is every network of this host; "
            "name the address that the other hosts of the run reach it by"
        )
    family = socket.AF_INET6 if bind_to.version == 6 else socket.AF_INET
    return socket.create_server((ip, port), family=family, backlog=backlog)


def source_ip_towards(ip: str) -> str:
    """The address of this host that the kernel would use to reach another one; nothing is sent.

    Raises:
        OSError: no route leads there.
        ValueError: it is no IP address.
    """
    family = socket.AF_INET6 if ipaddress.ip_address(ip).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect((ip, 9))  # the discard port; connecting a datagram socket only looks up the route
        return sock.getsockname()[0]


def local_ips() -> list[str]:
    """The addresses of this host's interfaces that are up, loopback last; link-local ones are left out."""
    import psutil  # 15 ms, and only runs of several hosts ask

    states = psutil.net_if_stats()
    found = [
        ipaddress.ip_address(address.address.partition("%")[0])
        for name, addresses in psutil.net_if_addrs().items()
        if name not in states or states[name].isup
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6)
    ]
    kept = [ip for ip in found if not ip.is_link_local]
    return [str(ip) for ip in sorted(kept, key=lambda ip: (ip.is_loopback, ip.version))]


def choose_advertised(advertise: str | None, towards: Sequence[str]) -> str:
    """The address of this host at which other hosts of a run reach it.

    Args:
        advertise: the user's choice, if there is one.
        towards: addresses of some of the other hosts, as far as known.

    Raises:
        SettingsError: the choice is no address of this host, or there are several addresses and nothing tells which.
    """
    ours = local_ips()
    if advertise is not None:
        chosen = str(ipaddress.ip_address(advertise))
        if chosen not in ours:
            raise SettingsError(
                f"advertise={advertise} is no address of this host, which has {', '.join(ours)}", name="advertise"
            )
        return chosen
    leading: list[str] = []
    for ip in towards:
        try:
            leading.append(source_ip_towards(ip))
        except OSError:  # no route: perhaps the others have one
            continue
    if leading:
        return max(dict.fromkeys(leading), key=leading.count)
    outer = [ip for ip in ours if not ipaddress.ip_address(ip).is_loopback]
    if len(outer) == 1 and not towards:
        return outer[0]
    why = f"no route leads to {', '.join(towards[:3])}" if towards else "the engine does not say where its hosts are"
    raise SettingsError(
        f"it is not clear at which address the other hosts reach this one: {why}. This host has {', '.join(ours)}; "
        "name one with the setting `advertise` (ropewalk run --advertise IP)",
        name="advertise",
    )
