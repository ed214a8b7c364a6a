"""The network addresses of this host: which of them to listen on."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Sequence

from ropewalk.errors import SettingsError


def listen_on(ip: str, port: int, *, backlog: int) -> socket.socket:
    """A listening TCP socket on one address of this host; port 0 chooses a free one.

    Raises:
        SettingsError: the address means "every network that this host is on".
        OSError: the address cannot be bound.
        ValueError: `ip` is not an IP address.
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
        ValueError: `ip` is not an IP address.
    """
    family = socket.AF_INET6 if ipaddress.ip_address(ip).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect((ip, 9))  # the discard port; connecting a datagram socket only looks up the route
        return sock.getsockname()[0]


def local_ips() -> list[str]:
    """The addresses of this host's interfaces that are up, loopback last; link-local ones are left out."""
    found = [ipaddress.ip_address(ip) for ips in _by_interface().values() for ip in ips]
    return [str(ip) for ip in sorted(found, key=lambda ip: (ip.is_loopback, ip.version))]


def interface_where_name_misleads(ip: str) -> str:
    """Return the interface that has an address of this host if the host's own name leads others elsewhere; else "".

    Debian and Ubuntu give a host's name the address 127.0.1.1 in /etc/hosts. Programs that look up their host's name to
    learn where others reach them, as gloo does, then listen on loopback.

    Args:
        ip: the address at which other hosts reach this one.
    """
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:  # the name has no address at all
        found = []
    if found and not _is_loopback(str(found[0][4][0]).partition("%")[0]):
        return ""
    return next((name for name, ips in _by_interface().items() if ip in ips), "")


def choose_advertised(advertise: str | None, towards: Sequence[str]) -> str:
    """The address of this host at which other hosts of a run reach it; loopback only if they are all this host.

    Args:
        advertise: the user's choice, if there is one.
        towards: addresses of some other hosts, where they are known.

    Raises:
        SettingsError: the choice is not an address of this host, or it is ambiguous which of several to use.
    """
    others_are_here = bool(towards) and all(_is_loopback(ip) for ip in towards)
    if advertise is not None:
        return _checked(advertise, towards, others_are_here)
    leading: list[str] = []
    for ip in towards:
        with contextlib.suppress(OSError):  # no route to this one: perhaps there is one to the others
            leading.append(source_ip_towards(ip))
    usable = [ip for ip in leading if others_are_here or not _is_loopback(ip)]
    if usable:
        return max(dict.fromkeys(usable), key=usable.count)
    outer = {name: ips for name, ips in _by_interface().items() if not _is_loopback(ips[0])}
    if not towards and len(outer) == 1:
        return next(iter(outer.values()))[0]
    if towards:
        why = f"no route leads to {', '.join(towards[:3])}"
    elif outer:
        why = "the engine does not say where its hosts are"
    else:
        why = "this host is on no network"
    raise SettingsError(
        f"it is not clear at which address the other hosts reach this one: {why}. This host has {_interfaces()}; "
        "name the one that they reach with the setting `advertise` (ropewalk run --advertise IP)",
        name="advertise",
    )


def _checked(advertise: str, towards: Sequence[str], others_are_here: bool) -> str:
    chosen = str(ipaddress.ip_address(advertise))
    if chosen not in local_ips():
        raise SettingsError(
            f"advertise={advertise} is not an address of this host, which has {_interfaces()}", name="advertise"
        )
    if _is_loopback(chosen) and towards and not others_are_here:
        elsewhere = next(ip for ip in towards if not _is_loopback(ip))
        raise SettingsError(
            f"advertise={advertise} is loopback, which another host such as {elsewhere} takes for itself; "
            f"this host has {_interfaces()}",
            name="advertise",
        )
    return chosen


def _by_interface() -> dict[str, list[str]]:
    """The addresses of each interface that is up and has any; IPv4 first."""
    import psutil  # takes 15 ms, and only runs of several hosts need it

    states = psutil.net_if_stats()
    found: dict[str, list[str]] = {}
    for name, addresses in psutil.net_if_addrs().items():
        ips = [
            ipaddress.ip_address(address.address.partition("%")[0])
            for address in addresses
            if address.family in (socket.AF_INET, socket.AF_INET6)
        ]
        kept = sorted((ip for ip in ips if not ip.is_link_local), key=lambda ip: ip.version)
        if kept and (name not in states or states[name].isup):
            found[name] = [str(ip) for ip in kept]
    return found


def _interfaces() -> str:
    """Describe all interfaces for a message: "eth0 10.0.0.1 and fd00::1, lo 127.0.0.1"."""
    return ", ".join(f"{name} {' and '.join(ips)}" for name, ips in _by_interface().items())


def _is_loopback(ip: str) -> bool:
    return ipaddress.ip_address(ip).is_loopback
