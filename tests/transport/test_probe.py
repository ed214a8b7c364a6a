"""What is in the way of a connection is told apart, with real firewalls between machines of the lab."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.errors import LinkClosed, TransportRefused
from ropewalk.transport.probe import Obstacle, Unreached, is_answered, unreached
from tests.lab import Lab, Machine, require

TABLE = "table ip guard {{ chain {hook} {{ type filter hook {hook} priority 0; tcp dport {port} {verdict}; }}; }}"


def probe(ip: str, port: int, timeout_s: float = 3.0) -> Unreached | None:
    """Connect and hang up again; None if that worked."""
    try:
        socket.create_connection((ip, port), timeout=timeout_s).close()
    except OSError as error:
        return unreached(ip, port, error, timeout_s)
    return None


@pytest.fixture
def machines(lab: Lab) -> tuple[Machine, Machine]:
    require("nft")
    return lab.machine("launcher"), lab.machine("agent")


@pytest.fixture
def listening(machines: tuple[Machine, Machine]) -> Iterator[tuple[str, int]]:
    with machines[0].listen() as sock:
        yield sock.getsockname()


def guard(machine: Machine, port: int, verdict: str, hook: str = "input") -> None:
    """A firewall that judges what comes to a port, or (`hook` "output") what goes to one."""
    machine.run(["nft", TABLE.format(port=port, verdict=verdict, hook=hook)])


def probe_from(machine: Machine, ip: str, port: int, timeout_s: float = 3.0) -> Unreached | None:
    """What a probe from a machine finds."""
    return machine.on_wire(lambda: probe(ip, port, timeout_s))


def test_an_open_way_is_found_open(machines: tuple[Machine, Machine], listening: tuple[str, int]) -> None:
    found = probe_from(machines[1], *listening)
    assert found is None


def test_a_dropped_packet_is_a_time_out_within_the_bound(
    machines: tuple[Machine, Machine], listening: tuple[str, int]
) -> None:
    launcher, agent = machines
    guard(launcher, listening[1], "drop")
    found = probe_from(agent, *listening, timeout_s=0.5)
    assert found
    assert found.obstacle is Obstacle.TIMED_OUT
    words = found.explain(f"agent-2 on n2 ({agent.ip})", "the launcher")
    assert words.startswith(
        f"agent-2 on n2 ({agent.ip}) cannot reach the launcher at {launcher.ip}:{listening[1]}: timed out after 0.5 s; "
    )
    assert f"let TCP port {listening[1]} in at {launcher.ip}" in words


@pytest.mark.parametrize(
    ("verdict", "obstacle"),
    [
        ("reject", Obstacle.REFUSED),
        ("reject with tcp reset", Obstacle.REFUSED),
        ("reject with icmp type admin-prohibited", Obstacle.NO_ROUTE),
        ("reject with icmp type host-unreachable", Obstacle.NO_ROUTE),
        ("reject with icmp type net-unreachable", Obstacle.NO_ROUTE),
    ],
)
def test_a_firewall_that_rejects_is_heard_at_once(
    machines: tuple[Machine, Machine], listening: tuple[str, int], verdict: str, obstacle: Obstacle
) -> None:
    launcher, agent = machines
    guard(launcher, listening[1], verdict)
    found = probe_from(agent, *listening)
    assert found
    assert found.obstacle is obstacle
    assert "firewall" in found.explain("agent-1", "the launcher")


def test_a_port_where_nobody_listens_says_so(machines: tuple[Machine, Machine]) -> None:
    with machines[0].listen() as sock:
        nowhere = sock.getsockname()
    found = probe_from(machines[1], *nowhere)
    assert found
    assert found.obstacle is Obstacle.REFUSED
    assert "connection refused; nothing listens there" in found.explain("agent-1", "the launcher")


def test_a_network_that_no_route_leads_to_says_so(machines: tuple[Machine, Machine]) -> None:
    found = probe_from(machines[1], "10.200.0.1", 4711)
    assert found
    assert found.obstacle is Obstacle.NO_ROUTE
    assert "network is unreachable" in found.why
    assert "ip route get 10.200.0.1" in found.explain("agent-1", "the launcher")


def test_a_host_that_is_not_there_is_told_within_the_bound(machines: tuple[Machine, Machine]) -> None:
    found = probe_from(machines[1], machines[0].ip.rpartition(".")[0] + ".200", 4711, timeout_s=1.0)
    assert found
    assert found.obstacle in (Obstacle.TIMED_OUT, Obstacle.NO_ROUTE), "whichever comes first"


def test_a_firewall_of_this_host_is_not_looked_for_on_the_other(
    machines: tuple[Machine, Machine], listening: tuple[str, int]
) -> None:
    guard(machines[1], listening[1], "reject with icmp type admin-prohibited", hook="output")
    found = probe_from(machines[1], *listening)
    assert found
    assert found.obstacle in (Obstacle.FORBIDDEN, Obstacle.NO_ROUTE)


def test_one_direction_may_be_closed_and_the_other_open(
    machines: tuple[Machine, Machine], listening: tuple[str, int]
) -> None:
    launcher, agent = machines
    guard(launcher, listening[1], "drop")
    with agent.listen() as there:
        assert probe_from(launcher, *there.getsockname()) is None
    assert probe_from(agent, *listening, timeout_s=0.3)


# --- words for errors of others ---------------------------------------------------------------------------------------


def test_an_error_of_an_attempt_that_others_made_is_understood_too() -> None:
    def caused_by(error: Exception) -> LinkClosed:
        closed = LinkClosed("nobody answers at tls:10.0.0.1:4711")
        closed.__cause__ = error
        return closed

    def obstacle(error: Exception) -> Obstacle:
        return unreached("10.0.0.1", 4711, error, 3).obstacle

    assert obstacle(caused_by(TimeoutError("timed out"))) is Obstacle.TIMED_OUT
    assert obstacle(caused_by(TimeoutError(110, "Connection timed out"))) is Obstacle.TIMED_OUT
    assert obstacle(caused_by(ConnectionRefusedError(111, "Connection refused"))) is Obstacle.REFUSED
    assert obstacle(PermissionError(1, "Operation not permitted")) is Obstacle.FORBIDDEN
    assert obstacle(TransportRefused("it is another run")) is Obstacle.TLS
    stranger = unreached("10.0.0.1", 4711, TransportRefused("it is another run"), 3)
    assert stranger.explain("agent-1 on n1", "the launcher").startswith(
        "agent-1 on n1 reaches 10.0.0.1:4711 but not the launcher there: it is another run; "
    )
    unknown = unreached("fd00::1", 4711, LinkClosed("no idea"), 3)
    assert unknown.obstacle is Obstacle.UNKNOWN
    assert unknown.explain("agent-1", "the launcher").startswith(
        "agent-1 cannot reach the launcher at [fd00::1]:4711: no idea; see whether fd00::1"
    )


def test_a_unix_socket_that_nobody_listens_on_is_told_from_one_that_is_busy(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    assert not is_answered(path)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        assert not is_answered(path), "a socket that was left behind"
        sock.listen(0)
        assert [is_answered(path) for _ in range(3)] == [True] * 3, "a full queue is somebody's, too"
    assert not is_answered(path)
