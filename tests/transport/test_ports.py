"""Free ports: nobody listens there, and the next one may take them at once."""

from __future__ import annotations

import contextlib
import socket

import pytest

from ropewalk.transport.ports import held_port


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize(
    "ip",
    ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not _has_ipv6(), reason="this host has no IPv6"))],
)
def test_a_port_that_was_held_can_be_listened_on_at_once(ip: str) -> None:
    with held_port(ip) as port:
        pass
    with socket.create_server((ip, port), family=socket.AF_INET6 if ":" in ip else socket.AF_INET, reuse_port=False):
        with (
            pytest.raises(OSError, match="in use"),
            socket.create_server((ip, port), family=socket.AF_INET6 if ":" in ip else socket.AF_INET),
        ):
            pass


def test_a_port_that_is_taken_or_held_is_not_given_out() -> None:
    with contextlib.ExitStack() as held, socket.create_server(("127.0.0.1", 0)) as server:
        ports = [held.enter_context(held_port("127.0.0.1")) for _ in range(20)]
        assert len({server.getsockname()[1], *ports}) == 21


def test_an_address_of_another_machine_has_no_ports_here() -> None:
    with pytest.raises(OSError):
        held_port("192.0.2.1").__enter__()  # TEST-NET-1: never assigned
