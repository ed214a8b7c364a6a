"""Machines on a switch, and everything that can go wrong between them.

    n1 eth0 ── p1 ┐                       the switch is a network namespace of its own, so labs of several
    n2 eth0 ── p2 ┤ br0                   test runs have the same addresses and never meet
    n3 eth0 ── p3 ── w3 ── a3 ≈≈ b3 ┤ br0     with delay or loss: a relay process passes frames between two TAPs
    n4 eth0 ── p4 ┤ r4 ── router ── o4 ┤ br0  behind a NAT: a router in one more namespace, with the public address

All of it exists only as long as process 1 of each machine, or a descriptor of this
process: nothing has a name in /run/netns, nothing must be cleaned up afterwards.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.lab import namespaces, wires
from tests.lab.machine import Machine, Result, processes_in
from tests.lab.wires import QUEUE_S, QUEUED_FRAMES, Relay

#: Less than this is no payload: a few ARP questions and connection attempts.
PAYLOAD_BYTES = 1000


@dataclass
class Link:
    """What is between a machine and the rest."""

    number: int
    """Of the machine in its lab; in its addresses and in the names of its devices."""
    port: str
    """The switch's end of the machine's cable."""
    bridge: str = "br0"
    """What the cable is plugged into, unless it is cut."""
    uplink: str = ""
    """The device that leads on from there to br0 or the router: the port itself, or the far end of the relay."""
    relay: Relay | None = None
    is_slow: bool = False
    is_behind_nat: bool = False
    delay_s: float = 0.0
    loss: float = 0.0
    received_at_cut: int | None = None
    """Bytes that the machine had received when it was cut off; None while it is connected."""


@dataclass(frozen=True)
class Condition:
    """A condition that a test set, to be asked at the end whether it made a difference to anything."""

    words: str
    machine: Machine
    bytes_before: int


class Lab:
    """One switch with its machines. As a context manager it closes itself, and then checks that nothing is left."""

    def __init__(self) -> None:
        self._switch = wires.new_network()
        self._routers: list[int] = []
        self._links: dict[Machine, Link] = {}
        self._conditions: list[Condition] = []
        self._parted: set[tuple[Machine, Machine]] = set()
        self._closed = False
        self._ip("link add br0 type bridge", "link set br0 up")

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.prove()
        finally:
            self.close()

    # --- machines -----------------------------------------------------------------------------------------------------

    def machine(self, name: str, *, shared: Sequence[Path] = ()) -> Machine:
        """Start a machine and connect it.

        Args:
            name: its host name; the machines of this lab find each other by name and by address.
            shared: folders of the host that are to be seen in it under the same path; needed only below /tmp, /run and
                /dev/shm, which are its own.
        """
        if any(machine.name == name for machine in self._links):
            raise ValueError(f"this lab has a machine {name!r} already")
        number = len(self._links) + 1
        machine = Machine(name, shared)
        link = self._links[machine] = Link(number, f"p{number}", uplink=f"p{number}")
        machine.ip = f"10.77.0.{number}"
        self._ip(
            f"link add {link.port} type veth peer name eth0 netns {machine.pid}",
            f"link set {link.port} master br0 up",
        )
        machine.visit(lambda: wires.ip(f"addr add {machine.ip}/24 dev eth0", "link set eth0 up", "link set lo up"))
        self._tell_names()
        return machine

    def machines(self, num_machines: int) -> list[Machine]:
        """Start n1, n2, ..."""
        return [self.machine(f"n{len(self._links) + 1}") for _ in range(num_machines)]

    def plug(self, machine: Machine, *, idle: bool = False) -> None:
        """Pull the plug: every process of the machine dies at once, and nobody is told.

        Args:
            machine: loses its files and its network too; it does not come back.
            idle: it need not have been spoken with before.
        """
        if not idle:
            self._assert_payload_crossed(machine, "plugged")
        self._conditions = [condition for condition in self._conditions if self._made_a_difference(condition)]
        # Before its processes die, for the kernel says farewell for them: a connection of a killed process is closed.
        self._ip(f"link set {self._links[machine].port} nomaster")
        machine.kill()

    # --- conditions of a link -----------------------------------------------------------------------------------------

    def cut(self, machine: Machine, *, idle: bool = False) -> None:
        """Cut the machine off, silently: nothing comes through in either direction, and no device says so.

        Args:
            machine: its processes live on.
            idle: it need not have been spoken with before.
        """
        if not idle:
            self._assert_payload_crossed(machine, "cut off")
        link = self._links[machine]
        self._ip(f"link set {link.port} nomaster")
        # What had passed the switch before may still wait in the queue of the cable.
        time.sleep(QUEUE_S if link.is_slow else 0.005)
        link.received_at_cut = machine.bytes_received()

    def heal(self, machine: Machine) -> None:
        """Connect a machine again that was cut off; connections that survived go on."""
        link = self._links[machine]
        received, link.received_at_cut = link.received_at_cut, None
        if received is None:
            raise ValueError(f"{machine} is not cut off")
        assert machine.bytes_received() == received, f"something came to {machine} while it was cut off"
        self._ip(f"link set {link.port} master {link.bridge}")

    def slow(self, machine: Machine, rate_bit_s: float) -> None:
        """Let at most this many bits a second through, in each direction."""
        self._note(f"slow({machine.name}, {rate_bit_s:g})", machine)
        self._links[machine].is_slow = True
        self._in_switch(lambda: wires.limit_rate(self._links[machine].port, rate_bit_s))
        machine.visit(lambda: wires.limit_rate("eth0", rate_bit_s))

    def lossy(self, machine: Machine, probability: float) -> None:
        """Lose each frame with this probability, in each direction; the same ones in each run of a test."""
        if probability:
            self._note(f"lossy({machine.name}, {probability:g})", machine)
        self._links[machine].loss = probability
        self._set_relay(machine)

    def delay(self, machine: Machine, seconds: float) -> None:
        """Let each frame arrive this much later, in each direction; a round trip takes twice as much.

        TCP takes a sudden delay of an open connection for congestion, and keeps it slow for a while: to measure
        throughput, set it before dialling.
        """
        if seconds:
            self._note(f"delay({machine.name}, {seconds:g})", machine)
        self._links[machine].delay_s = seconds
        self._set_relay(machine)

    def relayed(self, machine: Machine) -> tuple[int, int]:
        """How many frames a delayed or lossy link has seen, and how many of them it lost."""
        relay = self._links[machine].relay
        assert relay is not None, f"{machine} has neither delay nor loss"
        return relay.counts()

    def nat(self, machine: Machine) -> None:
        """Put the machine behind a router: it can dial out, and nobody can dial in.

        Its address becomes a private one, which the others do not reach; they see the router's. What it had connected
        before is lost.
        """
        link = self._links[machine]
        if link.is_behind_nat:
            raise ValueError(f"{machine} is behind a NAT already")
        link.is_behind_nat = True
        number, public = link.number, machine.ip
        inside = f"192.168.{number}"
        router = wires.new_network()
        self._routers.append(router)
        descriptor = f"/proc/{os.getpid()}/fd/{router}"
        self._ip(
            f"link add r{number} type bridge",
            f"link set r{number} up",
            f"link add i{number} type veth peer name inside netns {descriptor}",
            f"link set i{number} master r{number} up",
            f"link add o{number} type veth peer name outside netns {descriptor}",
            f"link set o{number} master br0 up",
            f"link set {link.uplink} master r{number}",
        )
        if link.bridge == "br0":
            link.bridge = f"r{number}"

        def route() -> None:
            namespaces.enter([router])
            wires.ip(
                f"addr add {inside}.1/24 dev inside", "link set inside up",
                f"addr add {public}/24 dev outside", "link set outside up",
            )  # fmt: skip
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
            wires.nft(wires.NAT_RULES)

        namespaces.in_thread(route)
        machine.visit(
            lambda: wires.ip(
                "addr flush dev eth0", f"addr add {inside}.2/24 dev eth0", f"route add default via {inside}.1"
            )
        )
        machine.ip = f"{inside}.2"
        self._tell_names()
        self._note(f"nat({machine.name})", machine)

    def part(self, one: Machine, other: Machine, *, refuse: bool = False) -> None:
        """Let nothing pass between two machines; both still reach all others.

        Args:
            one: does not hear the other any more.
            other: does not hear the one.
            refuse: say no to who asks, as many firewalls do; otherwise silence.
        """
        for here, there in ((one, other), (other, one)):
            verb = "reject" if refuse else "drop"
            rules = _PART_RULES.format(number=self._links[there].number, ip=there.ip, verb=verb)
            here.visit(lambda rules=rules: wires.nft(rules))
        self._parted.add((one, other))

    def rejoin(self, one: Machine, other: Machine) -> None:
        """Let two machines that were parted reach each other again."""
        if (one, other) not in self._parted:
            raise ValueError(f"{one} is not parted from {other}")
        self._assert_parted(one, other)
        self._parted.remove((one, other))
        for here, there in ((one, other), (other, one)):
            here.visit(lambda number=self._links[there].number: wires.nft(f"delete table ip parted{number}"))

    # --- proof and end ------------------------------------------------------------------------------------------------

    def prove(self) -> None:
        """Assert that payload crossed each wire that a condition was set for; else the test shows nothing about it."""
        for condition in self._conditions:
            assert self._made_a_difference(condition), (
                f"lab.{condition.words} was set, but afterwards less than {PAYLOAD_BYTES} bytes crossed that wire; "
                "what the test did went another way"
            )
        for one, other in self._parted:
            self._assert_parted(one, other)

    def close(self) -> None:
        """End all machines and assert that nothing of them is left; may be called twice."""
        if self._closed:
            return
        self._closed = True
        for machine in self._links:
            machine.kill()
        left = [words for machine in self._links for words in processes_in(machine.inodes)]
        for machine in self._links:
            machine.close()
        for link in self._links.values():
            if link.relay is not None:
                link.relay.close()
        for descriptor in (self._switch, *self._routers):
            os.close(descriptor)
        assert not left, "the lab left behind:\n" + "\n".join(left)

    def _made_a_difference(self, condition: Condition) -> bool:
        machine = condition.machine
        return machine.is_plugged or _crossed(machine) - condition.bytes_before >= PAYLOAD_BYTES

    def _assert_parted(self, one: Machine, other: Machine) -> None:
        num_stopped = 0
        for here, there in ((one, other), (other, one)):
            if not here.is_plugged:
                rules = here.visit(lambda number=self._links[there].number: wires.nft(f"list table ip parted{number}"))
                num_stopped += sum(map(int, re.findall(r"packets (\d+)", rules)))
        assert num_stopped or one.is_plugged or other.is_plugged, (
            f"{one} was parted from {other}, but neither tried to reach the other; that made no difference to the test"
        )

    def _note(self, words: str, machine: Machine) -> None:
        self._conditions.append(Condition(words, machine, _crossed(machine)))

    def _assert_payload_crossed(self, machine: Machine, what: str) -> None:
        crossed = _crossed(machine)
        assert crossed >= PAYLOAD_BYTES, (
            f"{machine} is to be {what}, but only {crossed} bytes crossed its wire so far; what the test did went "
            "another way, and would not notice. If that is meant, say idle=True"
        )

    # --- the switch ---------------------------------------------------------------------------------------------------

    def _set_relay(self, machine: Machine) -> None:
        link = self._links[machine]
        if link.relay is None:
            link.relay = self._insert_relay(link)
        link.relay.set(delay_s=link.delay_s, loss=link.loss, seed=link.number)

    def _insert_relay(self, link: Link) -> Relay:
        bridge, near, far = f"w{link.number}", f"a{link.number}", f"b{link.number}"
        relay = self._in_switch(lambda: Relay(near, far))
        self._ip(
            f"link add {bridge} type bridge",
            f"link set {bridge} up",
            f"link set {near} master {bridge} txqueuelen {QUEUED_FRAMES} up",
            f"link set {far} master {link.bridge} txqueuelen {QUEUED_FRAMES} up",
        )
        if link.received_at_cut is None:
            self._ip(f"link set {link.port} master {bridge}")
        link.bridge, link.uplink = bridge, far
        return relay

    def _tell_names(self) -> None:
        names = "".join(f"{machine.ip} {machine.name}\n" for machine in self._links)
        for machine in self._links:
            if not machine.is_plugged:
                machine.path("/run/hosts").write_text(f"127.0.0.1 localhost\n{names}")

    def _in_switch(self, act: Callable[[], Result]) -> Result:
        def act_inside() -> Result:
            namespaces.enter([self._switch])
            return act()

        return namespaces.in_thread(act_inside)

    def _ip(self, *commands: str) -> None:
        self._in_switch(lambda: wires.ip(*commands))


_PART_RULES = """
table ip parted{number} {{
    chain input {{
        type filter hook input priority filter;
        ip saddr {ip} ip protocol != icmp counter {verb}
    }}
}}
"""


def _crossed(machine: Machine) -> int:
    return 0 if machine.is_plugged else machine.bytes_received() + machine.bytes_sent()
