"""At which address others reach this host: the kernel knows, or the user has to say it."""

from __future__ import annotations

import socket
import sys

import pytest

from ropewalk.errors import SettingsError
from ropewalk.transport.interfaces import listen_on, local_ips, source_ip_towards
from tests.lab import Lab, Machine

NEVER_ROUTED = "240.0.0.1"


@pytest.fixture
def machine(lab: Lab) -> Machine:
    """With a second network, as hosts with a private interconnect have, and one that is down."""
    machine = lab.machine("two-nets")
    lab.machine("neighbour")
    for words in (
        "link add ib0 type veth peer name cable",
        "address add 10.99.0.1/24 dev ib0",
        "link set ib0 up",
        "link set cable up",
        "link add docker0 type bridge",
        "address add 10.98.0.1/24 dev docker0",
    ):
        machine.run(["ip", *words.split()])
    return machine


_CHOOSE = """
import sys
from ropewalk.errors import SettingsError
from ropewalk.transport.interfaces import choose_advertised
try:
    print(choose_advertised(sys.argv[1] or None, sys.argv[2:]), end="")
except SettingsError as error:
    print(error, end="")
"""


def choose(machine: Machine, advertise: str | None, towards: list[str]) -> str:
    """What a process there chooses, or why it does not. (A thread would not do: /proc shows it our own interfaces.)"""
    return machine.run([sys.executable, "-c", _CHOOSE, advertise or "", *towards]).stdout


def test_the_address_is_the_one_on_the_way_to_the_other_hosts(machine: Machine) -> None:
    neighbour = machine.ip.rpartition(".")[0] + ".77"
    assert machine.on_wire(lambda: source_ip_towards(neighbour)) == machine.ip
    assert machine.on_wire(lambda: source_ip_towards("10.99.0.5")) == "10.99.0.1"
    assert choose(machine, None, [neighbour]) == machine.ip
    assert choose(machine, None, ["10.99.0.5"]) == "10.99.0.1"
    assert choose(machine, None, ["10.99.0.5", neighbour, "10.99.0.6"]) == "10.99.0.1", "most of them"
    assert choose(machine, None, [NEVER_ROUTED, neighbour]) == machine.ip
    assert choose(machine, None, ["127.0.0.1", "127.0.0.1", neighbour]) == machine.ip, "loopback leads to no other host"


def test_asking_for_the_way_sends_nothing(machine: Machine) -> None:
    before = machine.bytes_sent()
    for _ in range(10):
        machine.on_wire(lambda: source_ip_towards(machine.ip.rpartition(".")[0] + ".77"))
    assert machine.bytes_sent() == before


def test_a_host_that_is_also_this_one_is_reached_at_its_address_there(machine: Machine) -> None:
    """As where the launcher runs on the one node of a cluster."""
    assert choose(machine, None, ["10.99.0.1"]) == "10.99.0.1"


def test_loopback_is_for_runs_whose_hosts_are_all_this_one(machine: Machine) -> None:
    assert choose(machine, None, ["127.0.0.1", "127.0.0.2"]) == "127.0.0.1"
    assert choose(machine, "127.0.0.1", ["127.0.0.1"]) == "127.0.0.1"
    words = choose(machine, "127.0.0.1", ["127.0.0.1", "10.99.0.7"])
    assert "is loopback, which another host such as 10.99.0.7 takes for itself" in words
    assert "ib0 10.99.0.1" in words


def test_what_nothing_tells_is_asked_of_the_user_with_all_there_is_to_choose(machine: Machine) -> None:
    for towards, why in (
        ([], "does not say where its hosts are"),
        ([NEVER_ROUTED], f"no route leads to {NEVER_ROUTED}"),
    ):
        words = choose(machine, None, towards)
        assert why in words
        assert f"eth0 {machine.ip}" in words
        assert "ib0 10.99.0.1" in words
        assert "docker0" not in words
        assert "--advertise" in words


def test_the_choice_of_the_user_counts_if_it_can_be_listened_on(machine: Machine) -> None:
    neighbour = machine.ip.rpartition(".")[0] + ".77"
    assert choose(machine, "10.99.0.1", [neighbour]) == "10.99.0.1"
    for not_ours in ("203.0.113.5", "0.0.0.0"):
        words = choose(machine, not_ours, [neighbour])
        assert f"advertise={not_ours} is not an address of this host" in words
        assert f"eth0 {machine.ip}" in words


def test_one_network_needs_no_choice_and_none_says_so(lab: Lab) -> None:
    machine = lab.machine("one-net")
    assert choose(machine, None, []) == machine.ip
    machine.run(["ip", "link", "set", "eth0", "down"])
    assert "this host is on no network" in choose(machine, None, [])


_MISLEADING = """
import sys
from ropewalk.transport.interfaces import interface_where_name_misleads
print(interface_where_name_misleads(sys.argv[1]), end="")
"""


def test_a_name_that_leads_to_loopback_is_replaced_by_the_interface_of_the_address(machine: Machine) -> None:
    def interface(address_of_name: str, ip: str) -> str:
        machine.path("/run/hosts").write_text(f"127.0.0.1 localhost\n{address_of_name} {machine.name}\n")
        return machine.run([sys.executable, "-c", _MISLEADING, ip]).stdout

    assert interface("127.0.1.1", machine.ip) == "eth0", "as on Debian and Ubuntu"
    assert interface("127.0.1.1", "10.99.0.1") == "ib0", "the network on which the hosts reach each other"
    assert interface("127.0.1.1", "10.99.0.77") == "", "the address of another host"
    assert interface(machine.ip, "10.99.0.1") == "", "the name is good, and who set it up may have had a reason"


def test_local_addresses_are_those_that_can_be_listened_on() -> None:
    ips = local_ips()
    assert "127.0.0.1" in ips
    loopback = [ip in ("::1",) or ip.startswith("127.") for ip in ips]
    assert loopback == sorted(loopback), "loopback comes last"
    for ip in ips:
        with listen_on(ip, 0, backlog=1) as sock:
            assert sock.getsockname()[0] == ip


def test_listening_takes_one_address_and_never_all() -> None:
    with listen_on("127.0.0.1", 0, backlog=1) as sock, socket.create_connection(sock.getsockname()):
        with pytest.raises(OSError):
            listen_on(*sock.getsockname(), backlog=1)
    for ip in ("0.0.0.0", "::", "::ffff:0.0.0.0", "224.0.0.1", "ff02::1"):
        with pytest.raises(SettingsError, match="every network"):
            listen_on(ip, 0, backlog=1)
    with pytest.raises(ValueError, match="n1"):
        listen_on("n1", 0, backlog=1)
