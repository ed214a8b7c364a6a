"""Emulation of slow links: a token bucket for each direction, in user space, over any real link.

    LinkEmulation("10Mbit/s")      the rate at which a member may send, and receive, each by itself (full duplex)

A message leaves when its last byte would have left, and is received when its last byte would have arrived. Therefore
many senders to one receiver share its downlink, and one sender to many receivers shares its uplink, as on a real port.
Sleeping is coarse at high rates, but delays are carried over: over many messages the rate is exact.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from ropewalk.errors import ExchangeInvalid

_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:e[0-9]+)?)\s*([kMGT]?)(bit|b|B)(?:/s|ps)\s*")
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BURST_S = 0.001
"""The burst that may leave at once after a silence, in seconds of the link's rate; it is at least one packet."""
_PACKET_BYTES = 1500.0


def bytes_per_second(rate: str | float) -> float:
    """Return a rate such as "10Mbit/s", "1.25GB/s" or 1.25e6 (bytes per second) in bytes per second.

    Args:
        rate: number with unit, or bytes per second.

    Raises:
        ExchangeInvalid: the rate cannot be parsed, or is not above zero.
    """
    if isinstance(rate, str):
        match = _RATE.fullmatch(rate)
        if match is None:
            raise ExchangeInvalid(f'a rate is written as "10Mbit/s", "100kbit/s" or "1.25GB/s", not {rate!r}')
        number, prefix, unit = match.groups()
        value = float(number) * _PREFIXES[prefix] / (1 if unit == "B" else 8)
    else:
        value = float(rate)
    if not 0 < value < float("inf"):
        raise ExchangeInvalid(f"a link carries more than 0 bytes per second and not without end, not {rate!r}")
    return value


@dataclass(frozen=True)
class LinkEmulation:
    """Rate and latency of the emulated links of a member.

    Args:
        rate: rate of uplink and downlink, as in `bytes_per_second`.
        latency_s: seconds from the departure of the last byte to its arrival.

    Raises:
        ExchangeInvalid: the rate cannot be parsed, or the latency is negative.
    """

    rate: str | float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        bytes_per_second(self.rate)
        if self.latency_s < 0:
            raise ExchangeInvalid(f"a latency is at least 0 s, not {self.latency_s}")


class TokenBucket:
    """Computes when bytes have passed a link of a rate; pure, with the time as an argument.

    The bucket gains one token per byte at the rate, until it is full; bytes that pass take their tokens and wait for
    those that are missing. The state is the time at which the link becomes free.
    """

    def __init__(self, rate: float, burst_bytes: float) -> None:
        self._rate = rate
        self._burst_s = burst_bytes / rate
        self._free_at = float("-inf")

    def through_at(self, num_bytes: int, begun_at: float) -> float:
        """Return the time at which `num_bytes` that began, or were queued, at `begun_at` have passed."""
        self._free_at = max(self._free_at, begun_at - self._burst_s) + num_bytes / self._rate
        return self._free_at


class EmulatedPort:
    """The uplink and downlink of one member. Each direction is used by one thread at a time.

    Args:
        shaping: rate and latency of the links.
        clock: returns monotonic seconds; an argument for tests.
        sleep: waits for a number of seconds; an argument for tests.
    """

    def __init__(
        self,
        shaping: LinkEmulation,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        rate = bytes_per_second(shaping.rate)
        burst_bytes = max(_PACKET_BYTES, rate * _BURST_S)
        self._rate = rate
        self._up, self._down = TokenBucket(rate, burst_bytes), TokenBucket(rate, burst_bytes)
        self._latency_s = shaping.latency_s
        self._clock, self._sleep = clock, sleep

    def sent(self, num_bytes: int) -> None:
        """Wait as long as these bytes would take to leave; call it before sending."""
        self._sleep_until(self._up.through_at(num_bytes, self._clock()))

    def received(self, num_bytes: int, arrived_at: float) -> None:
        """Wait as long as these bytes, which were complete at `arrived_at`, would have taken to arrive.

        They began to arrive when they began to leave: where nothing else arrives meanwhile, a downlink as fast as the
        sender's uplink adds no delay.
        """
        begun_at = arrived_at - num_bytes / self._rate
        through_at = max(arrived_at, self._down.through_at(num_bytes, begun_at))
        self._sleep_until(through_at + self._latency_s)

    def _sleep_until(self, moment: float) -> None:
        left_s = moment - self._clock()
        if left_s > 0:
            self._sleep(left_s)
