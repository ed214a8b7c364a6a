"""Links as slow as one likes: a token bucket for each direction, in user space, over any real link.

    LinkEmulation("10Mbit/s")      what a member may send, and what it may receive, each by itself (full duplex)

A message leaves when its last byte would have left, and is taken when its last byte would have arrived. So many
senders to one receiver share its downlink, and one sender to many receivers shares its uplink, as on a real port.
Sleeping is coarse at high rates, but what is late is owed: over many messages the rate is exact.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from ropewalk.errors import ExchangeInvalid

_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:e[0-9]+)?)\s*([kMGT]?)(bit|b|B)(?:/s|ps)\s*")
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
#: What may leave at once after a silence, in seconds of the link, and at least a packet.
_BURST_S = 0.001
_PACKET_BYTES = 1500.0


def bytes_per_second(rate: str | float) -> float:
    """A rate such as "10Mbit/s", "1.25GB/s" or 1.25e6 (bytes per second) as bytes per second.

    Raises:
        ExchangeInvalid: it cannot be read, or is not above zero.
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
    """How slow the links of a member are.

    Args:
        rate: up and down, as in `bytes_per_second`.
        latency_s: seconds from the last byte's leaving to its arrival.

    Raises:
        ExchangeInvalid: the rate cannot be read, or the latency is negative.
    """

    rate: str | float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        bytes_per_second(self.rate)
        if self.latency_s < 0:
            raise ExchangeInvalid(f"a latency is at least 0 s, not {self.latency_s}")


class TokenBucket:
    """When bytes are through a link of a rate; pure, with the time as an argument.

    Tokens of one byte each fall into the bucket at the rate, as long as it is not full; what passes takes its tokens
    out and waits for those that are missing. Kept as the moment at which the link is free.
    """

    def __init__(self, rate: float, burst_bytes: float) -> None:
        self._rate = rate
        self._burst_s = burst_bytes / rate
        self._free_at = float("-inf")

    def through_at(self, num_bytes: int, begun_at: float) -> float:
        """The moment at which so many bytes are through that began at `begun_at`, or wait behind others since then."""
        self._free_at = max(self._free_at, begun_at - self._burst_s) + num_bytes / self._rate
        return self._free_at


class EmulatedPort:
    """One member's uplink and downlink. Each direction is used by one thread at a time.

    Args:
        shaping: how slow they are.
        clock: for tests; monotonic seconds.
        sleep: for tests.
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
        """Wait as long as these bytes, which were all there at `arrived_at`, would have taken to arrive.

        They began to arrive when they began to leave: where nothing else arrives meanwhile, a downlink as fast as the
        sender's uplink is through with them at once.
        """
        begun_at = arrived_at - num_bytes / self._rate
        through_at = max(arrived_at, self._down.through_at(num_bytes, begun_at))
        self._sleep_until(through_at + self._latency_s)

    def _sleep_until(self, moment: float) -> None:
        left_s = moment - self._clock()
        if left_s > 0:
            self._sleep(left_s)
