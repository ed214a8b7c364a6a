"""What is called in the benchmarks of calls, and what calls it from other processes: the same for every library.

benchmark --- "2.0 seconds" ---> drive() in each client process --- calls ---> Target in the serving process
          <-- calls made, time -
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

ORDER = struct.Struct("!d")
COUNT = struct.Struct("!Qd")
METHODS = ("empty", "quick", "sleep", "take", "give", "add", "value", "pid", "prepare", "product")


class Target:
    """An ordinary object. Numpy is imported when the first array comes, so that rows of small calls do not carry it."""

    def __init__(self) -> None:
        self.count = 0
        self.stored: dict[int, Any] = {}
        self.matrix: Any = None

    def empty(self) -> None:
        """Does nothing."""

    def quick(self) -> None:
        """Does nothing, also while another method runs."""

    def sleep(self, duration_s: float) -> float:
        time.sleep(duration_s)
        return duration_s

    def take(self, array: Any) -> float:
        return look_at_every_page(array)

    def give(self, size_bytes: int) -> Any:
        """An array of that many bytes that differs from the last one; filling it is paid once."""
        import numpy as np

        if size_bytes not in self.stored:
            self.stored[size_bytes] = np.zeros(size_bytes // 8)
        self.stored[size_bytes][0] += 1.0
        return self.stored[size_bytes]

    def add(self) -> int:
        self.count += 1
        return self.count

    def value(self) -> int:
        return self.count

    def pid(self) -> int:
        return os.getpid()

    def prepare(self, width: int, kind: str) -> None:
        """Makes the matrix for `product`."""
        import numpy as np

        self.matrix = np.random.default_rng(7).random((width, width)).astype(kind)

    def product(self, vectors: Any) -> Any:
        return vectors @ self.matrix


def look_at_every_page(array: Any) -> float:
    """Reads one number of every 4 KiB, so that memory which is only mapped so far has to come."""
    return float(array[::512].sum())


def drive(address: str, call: Callable[[], object]) -> None:
    """In a client process: makes calls for as long as the benchmark says, as often as it says so."""
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(address)
        while order := control.recv(ORDER.size, socket.MSG_WAITALL):
            (duration_s,) = ORDER.unpack(order)
            control.sendall(COUNT.pack(*calls_within(duration_s, call)))


def calls_within(duration_s: float, call: Callable[[], object]) -> tuple[int, float]:
    """How many calls were made, and in what time."""
    count = 0
    start = now = time.perf_counter()
    while now - start < duration_s:
        for _ in range(20):
            call()
        count += 20
        now = time.perf_counter()
    return count, now - start


class Control:
    """The benchmark's end of `drive`."""

    def __init__(self, path: str, num_clients: int) -> None:
        self.path = path
        self.num_clients = num_clients
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(num_clients)
        self.listener.settimeout(60)
        self.clients: list[socket.socket] = []

    def wait_for_clients(self) -> None:
        while len(self.clients) < self.num_clients:
            client, _ = self.listener.accept()
            client.settimeout(60)
            self.clients.append(client)

    def rate(self, duration_s: float) -> float:
        """Calls per second of all clients together."""
        for client in self.clients:
            client.sendall(ORDER.pack(duration_s))
        return total_rate([COUNT.unpack(client.recv(COUNT.size, socket.MSG_WAITALL)) for client in self.clients])

    def close(self) -> None:
        """Lets `drive` return in every client."""
        for end in (*self.clients, self.listener):
            end.close()


def total_rate(counts: Sequence[tuple[int, float]]) -> float:
    return sum(count / elapsed for count, elapsed in counts)
