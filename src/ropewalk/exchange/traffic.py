"""`MemberTraffic`: exact counters of bytes sent and received, payload and headers apart, by tag and by parameter."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class MemberTraffic:
    """Bytes of one member since this object was made. Any thread may add.

    Attributes:
        sent: payload bytes by tag: messages of compressors, or dense values.
        received: payload bytes received, by tag.
        headers_sent: bytes of lengths, facts and frames, which are sent even when no member has a payload.
        layers: payload bytes sent, by parameter name; they add up to those of `sent` for gradients.
    """

    sent: Counter[str] = field(default_factory=Counter[str])
    received: Counter[str] = field(default_factory=Counter[str])
    headers_sent: int = 0
    layers: Counter[str] = field(default_factory=Counter[str])
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, tag: str, *, sent: int = 0, received: int = 0, headers_sent: int = 0) -> None:
        with self._lock:
            if sent:
                self.sent[tag] += sent
            if received:
                self.received[tag] += received
            self.headers_sent += headers_sent

    def add_layers(self, bytes_by_name: dict[str, int]) -> None:
        with self._lock:
            self.layers.update(bytes_by_name)

    @property
    def sent_bytes(self) -> int:
        """Payload bytes sent, headers not counted."""
        return self.sent.total()

    @property
    def received_bytes(self) -> int:
        """Payload bytes received, headers not counted."""
        return self.received.total()


def ring_bytes(size_bytes: int, size: int) -> int:
    """Return the bytes that each of `size` members sends, and receives, in a ring all-reduce of `size_bytes`."""
    return round(2 * (size - 1) * size_bytes / size)
