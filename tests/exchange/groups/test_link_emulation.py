"""Shaped links: bytes take the time that the rate says, whatever their pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.groups.link_emulation import EmulatedPort, LinkEmulation, TokenBucket, bytes_per_second


class Clock:
    """Time that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def port(rate: str, latency_s: float = 0.0) -> tuple[EmulatedPort, Clock]:
    clock = Clock()
    return EmulatedPort(LinkEmulation(rate, latency_s), lambda: clock.now, clock.sleep), clock


@pytest.mark.parametrize(
    ("text", "value"), [("100kbit/s", 12_500), ("10Mbps", 1.25e6), ("1.25GB/s", 1.25e9), (5e6, 5e6), ("1e3 B/s", 1e3)]
)
def test_rates_are_read_as_people_write_them(text: str | float, value: float) -> None:
    assert bytes_per_second(text) == value


@pytest.mark.parametrize("text", ["fast", "10", "-3Mbit/s", 0, -1.0, float("inf"), "0kbit/s"])
def test_what_is_no_rate_is_refused(text: str | float) -> None:
    with pytest.raises(ExchangeInvalid):
        LinkEmulation(text)


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=50), st.sampled_from(["100kbit/s", "10Mbit/s", "10Gbit/s"]))
def test_pieces_take_as_long_as_the_whole(sizes: list[int], rate: str) -> None:
    link, clock = port(rate)
    for size in sizes:
        link.sent(size)
    burst_bytes = max(1500.0, bytes_per_second(rate) * 0.001)
    expected = max(0.0, (sum(sizes) - burst_bytes) / bytes_per_second(rate))
    assert clock.now - 100.0 == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(st.lists(st.tuples(st.integers(1, 10_000), st.floats(0, 0.1)), min_size=1, max_size=40))
def test_never_more_passes_than_the_rate_and_the_burst_allow(messages: list[tuple[int, float]]) -> None:
    rate, burst = 50_000.0, 2_000.0
    bucket, now = TokenBucket(rate, burst), 0.0
    passed: list[tuple[float, int]] = []
    for size, pause in messages:
        now += pause
        now = max(now, bucket.through_at(size, now))
        passed.append((now, size))
    for first in range(len(passed)):
        num_bytes = sum(size for _, size in passed[first:])
        begun = passed[first][0] - passed[first][1] / rate
        assert num_bytes <= (passed[-1][0] - begun) * rate + burst + 1e-6


def test_one_sender_pays_for_the_way_once_and_not_at_both_ends() -> None:
    sender, clock = port("1Mbit/s")
    receiver = EmulatedPort(LinkEmulation("1Mbit/s"), lambda: clock.now, clock.sleep)
    for _ in range(10):
        sender.sent(125_000)
        receiver.received(125_000, clock.now)
    assert clock.now - 100.0 == pytest.approx(10.0, abs=0.02)


def test_many_senders_share_the_downlink_of_one_receiver() -> None:
    receiver, clock = port("1Mbit/s")
    for _ in range(4):
        receiver.received(125_000, 100.0)
    assert clock.now - 100.0 == pytest.approx(3.0, abs=0.02)  # the first one came over its own link meanwhile


def test_latency_is_paid_on_arrival() -> None:
    receiver, clock = port("10Gbit/s", latency_s=0.25)
    receiver.received(1000, 100.0)
    assert clock.now - 100.0 == pytest.approx(0.25, abs=0.001)
