"""`probe`: the topology of this machine, with the measured bandwidth of copies between its processes.

    this process ── copy into a slot ──▶ shared memory ── copy into a slot ──▶ this process
                 ── one byte ──▶ pipe ──▶ the other process ── one byte ──▶ pipe ──▶

A round trip without contents takes two latencies; a round trip with n bytes takes two
transfers more, of one copy each, as between stages on one machine. Between CUDA devices,
copies from device to device are measured.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import IO, Any

from ropewalk.engines.resources import usable_cpus, usable_memory
from ropewalk.errors import TopologyInvalid
from ropewalk.pipeline.topology import DeviceKind, Level, Topology
from ropewalk.quantities import shown_duration, shown_size

_COPY_BYTES = 2**24
"""As large as the activations of a large micro-batch, so that the copies measure memory, not a cache."""
_ROUNDS = 30

_ECHO = """
import mmap, os, sys
fd, size = int(sys.argv[1]), int(sys.argv[2])
slots, own = mmap.mmap(fd, 2 * size), bytearray(size)
while asked := os.read(0, 1):
    if asked == b"c":
        slots[size:] = own
    os.write(1, asked)
"""
"""The other process's program; it uses the standard library alone. Arguments: file descriptor and size of the slots."""


def probe(*, device: str | None = None, report: Callable[[str], None] | None = None) -> Topology:
    """Describe this machine: its devices, their memory, and the measured links between its processes.

    The measurement takes about a second, and starts a process for that time.

    Args:
        device: "cuda" for the CUDA devices; "cpu" for the cores, of which each is a device with its share of the
            memory; None: the CUDA devices if there are any, else the cores.
        report: called with a line of text for each result.

    Raises:
        TopologyInvalid: `device` is none of these, or there is no usable CUDA device.
    """
    report = report or (lambda _: None)
    if device not in (None, "cpu", "cuda"):
        raise TopologyInvalid(f'device must be "cpu", "cuda" or None, not {device!r}')
    if device != "cpu":
        found = _cuda_topology(report)
        if found is not None:
            return found
        if device == "cuda":
            raise TopologyInvalid('there is no CUDA device that torch can use here; leave out device, or say "cpu"')
    return _cpu_topology(report)


def _cpu_topology(report: Callable[[str], None]) -> Topology:
    num_cores = usable_cpus()
    memory_bytes = usable_memory() // num_cores
    report(f"{num_cores} cores, each a device with {shown_size(memory_bytes)} of the memory")
    latency_s, bandwidth = _copies_between_processes()
    report(
        f"a message between two processes takes {shown_duration(latency_s)}; a copy of {shown_size(_COPY_BYTES)} "
        f"through shared memory {bandwidth / 1e9:.1f} GB/s (medians of {_ROUNDS})"
    )
    return Topology((Level(num_cores, bandwidth, latency_s),), (DeviceKind("core", memory_bytes=memory_bytes),))


def _copies_between_processes() -> tuple[float, float]:
    """Seconds of an empty message, and bytes per second of a copy."""
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(2 * _COPY_BYTES)
        command = [sys.executable, "-I", "-c", _ECHO, str(file.fileno()), str(_COPY_BYTES)]
        with (
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, pass_fds=[file.fileno()]
            ) as other,
            mmap.mmap(file.fileno(), 2 * _COPY_BYTES) as slots,
        ):
            assert other.stdin is not None and other.stdout is not None
            source = bytes(_COPY_BYTES)

            def with_a_copy() -> None:
                slots[:_COPY_BYTES] = source

            empty_s = _round_s(b"e", other.stdin, other.stdout, lambda: None)
            copies_s = _round_s(b"c", other.stdin, other.stdout, with_a_copy)
            other.stdin.close()  # ends the other process
    return empty_s / 2, 2 * _COPY_BYTES / max(copies_s - empty_s, 1e-9)


def _round_s(message: bytes, to: IO[bytes], back: IO[bytes], before: Callable[[], None]) -> float:
    seconds: list[float] = []
    for _ in range(_ROUNDS + 2):
        start = time.perf_counter()
        before()
        to.write(message)
        if back.read(1) != message:
            raise TopologyInvalid("the process that should echo messages has ended; can Python be started here?")
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])  # the first two include page faults


# --- CUDA -------------------------------------------------------------------------------------------------------------


def _cuda_topology(report: Callable[[str], None]) -> Topology | None:
    if importlib.util.find_spec("torch") is None:
        return None
    torch: Any = importlib.import_module("torch")  # by name, since probing cores must work without torch
    if not torch.cuda.is_available():
        return None
    properties: list[Any] = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    kinds: dict[tuple[str, int], DeviceKind] = {}
    for one in properties:
        key = (str(one.name), int(one.total_memory))
        kinds.setdefault(key, DeviceKind(key[0], memory_bytes=key[1]))
    order = list(kinds)
    kind_of = tuple(order.index((str(one.name), int(one.total_memory))) for one in properties)
    report(", ".join(f"{one.name} with {shown_size(int(one.total_memory))}" for one in properties))
    level = Level(1) if len(properties) < 2 else _copies_between_devices(torch, report)
    return Topology((Level(len(properties), level.bandwidth, level.latency_s),), tuple(kinds.values()), kind_of)


def _copies_between_devices(torch: Any, report: Callable[[str], None]) -> Level:
    def seconds_of(size_bytes: int) -> float:
        source = torch.zeros(size_bytes, dtype=torch.uint8, device="cuda:0")
        target = torch.empty_like(source, device="cuda:1")
        seconds: list[float] = []
        for _ in range(_ROUNDS + 2):
            torch.cuda.synchronize(0)
            torch.cuda.synchronize(1)
            start = time.perf_counter()
            target.copy_(source)
            torch.cuda.synchronize(0)
            torch.cuda.synchronize(1)
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds[2:])

    latency_s, copy_s = seconds_of(1), seconds_of(_COPY_BYTES)
    bandwidth = _COPY_BYTES / (copy_s - latency_s) if copy_s > latency_s else math.inf
    report(
        f"a copy of {shown_size(_COPY_BYTES)} from device 0 to device 1: {bandwidth / 1e9:.1f} GB/s after "
        f"{shown_duration(latency_s)} (medians of {_ROUNDS})"
    )
    return Level(2, bandwidth, latency_s)
