"""Conditions of links: each is measured on real traffic, and noticed when it made no difference."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest

from tests.lab import Lab, Machine
from tests.lab.measuring import carry, connected, receive, round_trip_s

MEBIBYTE = 1 << 20


def has_come(sock: socket.socket) -> bool:
    """Whether a byte has come within a moment that is long for a wire without delay."""
    sock.settimeout(0.3)
    with contextlib.suppress(TimeoutError):
        return bool(sock.recv(1))
    return False


def datagrams_that_come(sender: Machine, receiver: Machine, num_datagrams: int) -> int:
    """Send datagrams at a pace that nothing but the condition of the link stops, and count those that come."""
    ours = receiver.visit(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    theirs = sender.visit(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with ours, theirs:
        ours.bind((receiver.ip, 0))
        ours.settimeout(0.5)
        num_come = 0
        for number in range(num_datagrams):
            theirs.sendto(b"x" * 100, ours.getsockname())
            if number % 50 == 49:  # the buffer of a socket holds some hundred
                time.sleep(0.005)
                ours.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while ours.recv(200):
                        num_come += 1
        ours.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            while ours.recv(200):
                num_come += 1
    return num_come


# --- cut and heal -----------------------------------------------------------------------------------------------------


def test_what_is_sent_is_counted_on_the_wire(lab: Lab) -> None:
    one, two = lab.machines(2)
    with connected(one, two) as (dialled, accepted):
        sent, received = one.bytes_sent(), two.bytes_received()
        carry(dialled, accepted, 4 * MEBIBYTE)
    assert one.bytes_sent() - sent >= 4 * MEBIBYTE
    assert two.bytes_received() - received >= 4 * MEBIBYTE


def test_nothing_comes_through_a_cut_in_either_direction(lab: Lab) -> None:
    one, two, three = lab.machines(3)
    with connected(one, two) as (dialled, accepted), connected(one, three) as (whole, other):
        carry(dialled, accepted, MEBIBYTE)
        lab.cut(two)
        dialled.sendall(b"a")
        accepted.sendall(b"b")
        assert not has_come(accepted) and not has_come(dialled)
        assert round_trip_s(whole, other) < 1  # the others go on
        with pytest.raises(OSError, match=r"timed out|No route"):
            one.connect(two.ip, 1, timeout_s=0.3)


def test_an_open_connection_survives_a_cut_and_loses_no_byte(lab: Lab) -> None:
    one, two = lab.machines(2)
    with connected(one, two) as (dialled, accepted):
        carry(dialled, accepted, MEBIBYTE)
        lab.cut(two)
        dialled.sendall(b"during the cut")
        accepted.sendall(b"and back")
        time.sleep(1)
        lab.heal(two)
        assert receive(accepted, 14) == b"during the cut"
        assert receive(dialled, 8) == b"and back"
        carry(accepted, dialled, MEBIBYTE)


def test_a_cut_is_seen_by_no_device_of_the_machine(lab: Lab) -> None:
    one, two = lab.machines(2)
    with connected(one, two) as (dialled, accepted):
        carry(dialled, accepted, MEBIBYTE)
    lab.cut(two)
    assert "LOWER_UP" in two.run(["ip", "link", "show", "eth0"]).stdout


def test_a_cut_that_nobody_would_notice_is_an_error(lab: Lab) -> None:
    one, two = lab.machines(2)
    with pytest.raises(AssertionError, match=r"only \d+ bytes crossed its wire so far.*idle=True"):
        lab.cut(two)
    with pytest.raises(AssertionError, match="is to be plugged"):
        lab.plug(two)
    lab.cut(two, idle=True)
    with pytest.raises(OSError):
        one.connect(two.ip, 1, timeout_s=0.2)


def test_only_what_was_cut_is_healed(lab: Lab) -> None:
    with pytest.raises(ValueError, match="is not cut off"):
        lab.heal(lab.machine("n1"))


@pytest.mark.parametrize(("refuse", "words"), [(False, "timed out"), (True, "refused")])
def test_parted_machines_reach_all_others(lab: Lab, refuse: bool, words: str) -> None:
    one, two, three = lab.machines(3)
    with connected(one, two) as (dialled, accepted):
        carry(dialled, accepted, MEBIBYTE)
        lab.part(one, two, refuse=refuse)
        with two.listen() as server, pytest.raises(OSError, match=words):
            one.connect(two.ip, server.getsockname()[1], timeout_s=0.3)
        for reached in (one, two):
            with connected(three, reached) as (to, fro):
                carry(to, fro, MEBIBYTE)
        lab.rejoin(one, two)
        carry(dialled, accepted, MEBIBYTE)


def test_a_parting_that_nobody_tried_to_cross_fails_the_test(lab: Lab) -> None:
    one, two = lab.machines(2)
    lab.part(one, two)
    with pytest.raises(AssertionError, match="neither tried to reach the other"):
        lab.prove()
    for timeout_s in (1.0, 10.0):  # the address is asked for before anything is stopped; a busy machine takes longer
        with pytest.raises(TimeoutError):
            one.connect(two.ip, 1, timeout_s=timeout_s)
        with contextlib.suppress(AssertionError):
            lab.prove()
            return
    lab.prove()


# --- slow, lossy, delay -----------------------------------------------------------------------------------------------


def test_a_slow_link_lets_through_what_was_said_in_both_directions(lab: Lab) -> None:
    one, two = lab.machines(2)
    with connected(one, two) as (dialled, accepted):
        assert carry(dialled, accepted, MEBIBYTE) < 0.5
        lab.slow(two, 20e6)
        for sender, receiver in ((dialled, accepted), (accepted, dialled)):
            rate_bit_s = 8 * MEBIBYTE / carry(sender, receiver, MEBIBYTE)
            assert 14e6 < rate_bit_s < 21e6, rate_bit_s  # headers take a twentieth


def test_a_delay_is_added_to_each_direction(lab: Lab) -> None:
    one, two, three = lab.machines(3)
    with connected(one, two) as (dialled, accepted), connected(one, three) as (near, other):
        assert round_trip_s(dialled, accepted) < 0.02
        lab.delay(two, 0.02)
        assert 0.04 <= round_trip_s(dialled, accepted) < 0.06
        assert round_trip_s(near, other) < 0.02
        lab.delay(three, 0.01)
        assert 0.02 <= round_trip_s(near, other) < 0.04
        lab.delay(two, 0)
        assert round_trip_s(dialled, accepted) < 0.02


def test_a_delayed_link_still_carries_megabytes_a_second(lab: Lab) -> None:
    one, two = lab.machines(2)
    lab.delay(two, 0.02)
    with connected(one, two) as (dialled, accepted):
        assert carry(dialled, accepted, 16 * MEBIBYTE) < 8


@pytest.mark.parametrize("direction", ["to it", "from it"])
def test_a_lossy_link_loses_as_much_as_was_said(lab: Lab, direction: str) -> None:
    one, two = lab.machines(2)
    sender, receiver = (one, two) if direction == "to it" else (two, one)
    with connected(sender, receiver) as (dialled, accepted):
        round_trip_s(dialled, accepted)  # now they know each other's addresses
    assert datagrams_that_come(sender, receiver, 1000) == 1000
    lab.lossy(two, 0.1)
    num_frames_before, num_lost_before = lab.relayed(two)
    num_lost = 3000 - datagrams_that_come(sender, receiver, 3000)
    assert 220 <= num_lost <= 380  # five standard deviations around 300
    num_frames, num_lost_there = lab.relayed(two)
    assert 0 <= num_frames - num_frames_before - 3000 <= 20  # some questions for addresses
    assert 0 <= num_lost_there - num_lost_before - num_lost <= 20


def test_tcp_gets_all_bytes_through_a_lossy_link(lab: Lab) -> None:
    one, two = lab.machines(2)
    with connected(one, two) as (dialled, accepted):
        lab.lossy(two, 0.02)
        carry(dialled, accepted, 4 * MEBIBYTE)
        carry(accepted, dialled, 4 * MEBIBYTE)
    num_frames, num_lost = lab.relayed(two)
    assert 0.005 < num_lost / num_frames < 0.04


def test_conditions_add_up_and_outlast_a_cut(lab: Lab) -> None:
    one, two = lab.machines(2)
    with connected(one, two) as (dialled, accepted):
        lab.slow(two, 20e6)
        lab.delay(two, 0.02)
        lab.lossy(two, 0.001)
        carry(dialled, accepted, MEBIBYTE // 4)
        lab.cut(two)
        dialled.sendall(b"a")
        assert not has_come(accepted)
        lab.heal(two)
        accepted.settimeout(10)
        receive(accepted, 1)
        assert round_trip_s(dialled, accepted) >= 0.04
        assert carry(dialled, accepted, MEBIBYTE) > 8 * MEBIBYTE / 21e6


def test_a_condition_that_no_payload_met_fails_the_test(lab: Lab) -> None:
    one, two, three = lab.machines(3)
    lab.delay(three, 0.01)
    with connected(one, two) as (dialled, accepted):
        carry(dialled, accepted, MEBIBYTE)
    with pytest.raises(AssertionError, match=r"lab\.delay\(n3, 0\.01\) was set, but afterwards less than 1000 bytes"):
        lab.prove()
    with connected(one, three) as (dialled, accepted):
        carry(dialled, accepted, MEBIBYTE // 4)
    lab.prove()


# --- one-way NAT ------------------------------------------------------------------------------------------------------


def test_behind_a_nat_a_machine_dials_out_under_another_address(lab: Lab) -> None:
    launcher, worker = lab.machines(2)
    public = launcher.ip
    lab.nat(launcher)
    with worker.listen() as server:
        with launcher.connect(worker.ip, server.getsockname()[1]) as dialled:
            accepted, (seen, _) = server.accept()
            with accepted:
                assert dialled.getsockname()[0] == launcher.ip != public
                assert seen == public
                carry(dialled, accepted, MEBIBYTE)
                carry(accepted, dialled, MEBIBYTE)


def test_behind_a_nat_a_machine_cannot_be_dialled(lab: Lab) -> None:
    launcher, worker, other = lab.machines(3)
    public = launcher.ip
    lab.nat(launcher)
    with launcher.listen() as server, connected(launcher, worker) as (dialled, accepted):
        carry(dialled, accepted, MEBIBYTE)  # an open connection opens no door for new ones
        other.run(["ip", "route", "add", f"{launcher.ip}/32", "via", public])  # nor does knowing the way
        for ip in (public, launcher.ip):
            for dialler in (worker, other):
                with pytest.raises(OSError, match=r"timed out|unreachable"):
                    dialler.connect(ip, server.getsockname()[1], timeout_s=0.3)


def test_conditions_of_a_machine_behind_a_nat_are_kept(lab: Lab) -> None:
    launcher, worker = lab.machines(2)
    lab.delay(launcher, 0.01)
    lab.nat(launcher)
    with connected(launcher, worker) as (dialled, accepted):
        assert 0.02 <= round_trip_s(dialled, accepted) < 0.04
        carry(dialled, accepted, MEBIBYTE)
        lab.cut(launcher)
        dialled.sendall(b"a")
        assert not has_come(accepted)
        lab.heal(launcher)
        accepted.settimeout(10)
        assert receive(accepted, 1) == b"a"
    with pytest.raises(ValueError, match="behind a NAT already"):
        lab.nat(launcher)
