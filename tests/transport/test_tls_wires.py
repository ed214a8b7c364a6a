"""TLS links between two machines, over wires that are slow, lossy, far, one-way or cut."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest

from ropewalk.errors import LinkClosed
from ropewalk.transport import server
from ropewalk.transport.client import dial
from ropewalk.transport.credentials import AllowList, Credentials
from ropewalk.transport.link import Link
from ropewalk.transport.loop import Loop
from ropewalk.transport.passport import Passport
from ropewalk.transport.tls_server import TlsListener
from tests.lab import Lab, Machine
from tests.patience import PATIENCE_S, wait_until
from tests.transport.ends import NOTES, RUN, Note, certificate, on_loop, running_loop

#: What each does to the link of the machine that dials; and what a call must not take longer than because of it.
WIRES: dict[str, Callable[[Lab, Machine], None]] = {
    "plain": lambda lab, machine: None,
    "20 ms away": lambda lab, machine: lab.delay(machine, 0.02),
    "2 % lost": lambda lab, machine: lab.lossy(machine, 0.02),
    "10 Mbit/s": lambda lab, machine: lab.slow(machine, 10e6),
    "all of it": lambda lab, machine: (lab.delay(machine, 0.02), lab.lossy(machine, 0.02), lab.slow(machine, 10e6))[0],
    "behind a NAT": lambda lab, machine: lab.nat(machine),
}


class Listening:
    """A listener on a machine; it answers each note with its double and the parts that came."""

    def __init__(self, loop: Loop, machine: Machine) -> None:
        self.loop = loop
        self.members = AllowList()
        self.credentials = Credentials.create(RUN, "client")
        self.members.admit("client", self.credentials.secret, certificate("client").fingerprint)
        self.gone: queue.Queue[str] = queue.Queue()
        self.links: list[Link] = []
        self.listener = machine.on_wire(
            lambda: TlsListener(loop, machine.ip, 0, certificate("server"), RUN, self.members, NOTES, self._linked)
        )
        on_loop(loop, self.listener.open)

    def _linked(self, process_id: str, link: Link) -> None:
        self.links.append(link)
        self.loop.add_link(link, lambda got: link.send(Note(2 * got.message.number), got.parts), self.gone.put)

    def dial(self, machine: Machine, *, timeout_s: float = PATIENCE_S) -> Link:
        """A link from a process on that machine."""
        passport = Passport("far", certificate=certificate("client"))
        address = self.listener.address
        assert address
        return machine.on_wire(lambda: dial(address, self.credentials, NOTES, passport=passport, timeout_s=timeout_s))


@contextlib.contextmanager
def listening(machine: Machine) -> Generator[Listening]:
    with running_loop() as loop:
        at = Listening(loop, machine)
        try:
            yield at
        finally:
            on_loop(loop, at.listener.close)
            for link in at.links:
                on_loop(loop, lambda link=link: loop.remove_link(link))


@contextlib.contextmanager
def linked(lab: Lab, wire: str = "plain") -> Generator[tuple[Link, Listening, Machine]]:
    """A link over such a wire, what it leads to, and the machine that dialled."""
    here, far = lab.machines(2)
    WIRES[wire](lab, far)
    with listening(here) as at, contextlib.closing(at.dial(far)) as link:
        yield link, at, far


def receive(link: Link, num_messages: int) -> list[Any]:
    received = [link.receive() for _ in range(num_messages)]
    assert None not in received, "the link was closed"
    return received


def send_from_thread(link: Link, numbers: range, part: bytes = b"") -> threading.Thread:
    def send() -> None:
        for number in numbers:
            link.send(Note(number), [part] if part else ())

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize("wire", WIRES)
def test_messages_come_whole_and_in_order_over_any_wire(lab: Lab, wire: str) -> None:
    large = os.urandom(300_000)
    with linked(lab, wire) as (link, _, _):
        small = send_from_thread(link, range(200))
        assert [got.message.number for got in receive(link, 200)] == [2 * number for number in range(200)]
        small.join()
        sender = send_from_thread(link, range(3), large)
        assert [(got.message.number, bytes(got.parts[0]) == large) for got in receive(link, 3)] == [
            (0, True),
            (2, True),
            (4, True),
        ]
        sender.join()


@pytest.mark.timing
def test_messages_in_flight_do_not_wait_for_each_other(lab: Lab) -> None:
    def answered_s(link: Link, num: int) -> float:
        began = time.monotonic()
        sender = send_from_thread(link, range(num))
        receive(link, num)
        sender.join()
        return time.monotonic() - began

    with linked(lab, "20 ms away") as (link, _, _):
        one_s = min(answered_s(link, 1) for _ in range(3))
        assert one_s >= 0.04, "the wire was not long"
        assert answered_s(link, 300) < 50 * one_s


@pytest.mark.timing
def test_a_link_is_up_after_four_round_trips(lab: Lab) -> None:
    here, far = lab.machines(2)
    lab.delay(far, 0.05)
    took_s: list[float] = []
    with listening(here) as at:
        for _ in range(3):
            began = time.monotonic()
            at.dial(far).close()
            took_s.append(time.monotonic() - began)
    assert 4 <= min(took_s) / 0.1 < 5, "TCP, TLS, the yes of both sides, the greeting"


def test_a_link_survives_a_cut_and_loses_no_message(lab: Lab) -> None:
    with linked(lab) as (link, at, far):
        link.send(Note(0), [bytes(10_000)])
        receive(link, 1)
        lab.cut(far)
        for number in range(1, 101):
            link.send(Note(number))
        time.sleep(2)
        lab.heal(far)
        assert [got.message.number for got in receive(link, 100)] == [2 * number for number in range(1, 101)]
        assert at.gone.empty()


def test_sending_to_a_host_that_was_cut_off_never_stops_the_loop(lab: Lab) -> None:
    with linked(lab) as (link, at, far):
        link.send(Note(0), [bytes(10_000)])
        receive(link, 1)
        lab.cut(far)
        (theirs,) = at.links

        def send_much() -> int:
            for number in range(40):
                theirs.send(Note(number), [bytes(1 << 20)])
            return theirs.unsent_bytes

        assert on_loop(at.loop, send_much) > 16 << 20
        assert on_loop(at.loop, lambda: True)
        on_loop(at.loop, lambda: at.loop.remove_link(theirs))
        at.links.clear()


def test_what_was_sent_to_a_slow_host_arrives_when_the_host_is_healed(lab: Lab) -> None:
    with linked(lab, "20 ms away") as (link, at, far):
        link.send(Note(0), [bytes(10_000)])
        receive(link, 1)
        (theirs,) = at.links
        for number in range(8):
            on_loop(at.loop, lambda number=number: theirs.send(Note(number), [bytes([number]) * (1 << 20)]))
        lab.cut(far)
        time.sleep(0.5)
        lab.heal(far)
        came = receive(link, 8)
        assert [(got.message.number, bytes(got.parts[0])) for got in came] == [
            (number, bytes([number]) * (1 << 20)) for number in range(8)
        ]


def test_a_host_that_is_cut_off_is_not_waited_for_longer_than_said(lab: Lab) -> None:
    here, far = lab.machines(2)
    with listening(here) as at:
        at.dial(far).close()
        lab.cut(far)
        with pytest.raises(LinkClosed, match=r"nobody answers at .*10\.77\.0\.1"):
            at.dial(far, timeout_s=0.5)


def test_a_listener_behind_a_nat_is_not_waited_for_longer_than_said(lab: Lab) -> None:
    here, far = lab.machines(2)
    lab.nat(here)
    with listening(here) as at:
        with pytest.raises(LinkClosed, match=r"nobody answers at .*192\.168\."):
            at.dial(far, timeout_s=0.5)
        # The other way round it works, and is the payload that the lab wants to have seen.
        with listening(far) as open_one, contextlib.closing(open_one.dial(here)) as link:
            link.send(Note(21), [bytes(10_000)])
            assert receive(link, 1)[0].message.number == 42


def test_a_stranger_that_is_cut_off_keeps_no_place(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_S", 0.5)
    here, far = lab.machines(2)
    with listening(here) as at:
        at.dial(far).close()
        address = at.listener.address
        assert address
        with far.connect(address.ip, address.port):
            wait_until(lambda: len(at.listener._strangers) == 1)
            lab.cut(far)
            wait_until(lambda: len(at.listener._strangers) == 0)
        lab.heal(far)
        at.dial(far).close()


def test_a_run_listens_only_on_the_address_that_was_asked_for(lab: Lab) -> None:
    here, far = lab.machines(2)
    with listening(here) as at:
        assert at.listener.address
        sockets = here.run(["cat", "/proc/net/tcp", "/proc/net/tcp6"]).stdout.splitlines()
        listening_at = [line.split()[1] for line in sockets if line.split()[3] == "0A"]
        ip = "".join(f"{int(number):02X}" for number in reversed(here.ip.split(".")))
        assert listening_at == [f"{ip}:{at.listener.address.port:04X}"]
        with pytest.raises(ConnectionRefusedError):
            here.connect("127.0.0.1", at.listener.address.port)
        at.dial(far).close()


@pytest.mark.parametrize("wire", ["20 ms away", "10 Mbit/s"])
def test_last_words_arrive_although_something_was_left_unread(lab: Lab, wire: str) -> None:
    """The kernel resets a connection that is closed with unread bytes, and most of the last words were lost by that."""
    with linked(lab, wire) as (link, at, _):
        wait_until(lambda: at.links != [])
        (theirs,) = at.links
        heard: list[int] = []
        on_loop(at.loop, lambda: theirs.send(Note(99)))
        wait_until(lambda: readable(link))
        on_loop(at.loop, lambda: hear_with(at, theirs, heard.append))
        for number in range(10):
            link.send(Note(number), [bytes(20_000)])
        link.close()
        assert at.gone.get(timeout=PATIENCE_S) == "the peer closed the link"
        assert heard == list(range(10))


def readable(link: Link) -> bool:
    poller = select.poll()
    poller.register(link.stream.fileno(), select.POLLIN)
    return bool(poller.poll(0))


def hear_with(at: Listening, link: Link, hear: Callable[[int], None]) -> None:
    """From now on messages are heard and not answered."""
    fd, _, on_closed = at.loop._links[link]
    at.loop._links[link] = (fd, lambda got: hear(got.message.number), on_closed)


def test_heartbeats_come_through_beside_a_large_frame_on_a_slow_wire(lab: Lab) -> None:
    with linked(lab, "10 Mbit/s") as (bulk, at, far):
        beating = Credentials.create(RUN, "beats")
        at.members.admit("beats", beating.secret, certificate("beats").fingerprint)
        passport = Passport("far", certificate=certificate("beats"))
        address = at.listener.address
        assert address
        beats = far.on_wire(lambda: dial(address, beating, NOTES, passport=passport, timeout_s=PATIENCE_S))
        with contextlib.closing(beats):
            sender = send_from_thread(bulk, range(1), os.urandom(2_000_000))
            carrier = threading.Thread(target=lambda: receive(bulk, 1))
            carrier.start()
            num_beats = 0
            while carrier.is_alive():
                beats.send(Note(num_beats))
                receive(beats, 1)
                num_beats += 1
                carrier.join(0.05)
            sender.join()
    assert num_beats > 10, "within the 1.6 s that the frame takes, and a lease is 2.5 s"
