"""Our side of the benchmarks of calls: the same `Target`, served by a node of a program.

The clients in this process are `running.client("target")`; client processes are workers of the program with a handle.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

from call_contenders import Client, Future
from callee import Control, Target, drive

import ropewalk as rw

PATIENCE_S = 10


class Served(Target):
    @rw.concurrent(2)
    def quick(self) -> None:
        """Does nothing, also while another method runs."""

    @rw.batched(max_size=32, max_wait_s=0.002)
    def product_batched(self, vectors: Any) -> Any:
        return self.product(vectors)


class Kept(Target):
    """Comes back with its count."""

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]

    @rw.idempotent
    def value(self) -> int:
        return self.count


def drive_with(target: Any, control: str) -> None:
    drive(control, target.empty)


class RopewalkClient:
    def __init__(self, client: Any) -> None:
        self.client = client

    def method(self, name: str) -> Callable[..., Any]:
        return getattr(self.client, name)

    def futures(self, name: str) -> Callable[..., Future]:
        return getattr(self.client, name).future

    def close(self) -> None:
        """The program closes its clients."""


class Ropewalk:
    def __init__(self) -> None:
        self.running = launched()

    def client(self) -> Client:
        return RopewalkClient(self.running.client("target"))

    def start_clients(self, control: Control) -> None:
        self.running.stop()
        self.running = launched(control)

    def close(self) -> None:
        self.running.stop()


def launched(control: Control | None = None) -> Any:
    program = rw.Program("calls")
    target = program.add(rw.Service(Served), name="target")
    if control:
        program.add(rw.Worker(drive_with, target, control.path), name="clients", replicas=control.num_clients)
    return program.launch(mode="processes")


def answered_meanwhile(sleep_s: float) -> Iterator[tuple[str, float, float]]:
    """What was asked while a method slept, after how many seconds it was done, and what that must be less than."""
    running = launched()
    try:
        client = running.client("target")
        client.empty()
        running.status()
        sleeping = client.sleep.future(sleep_s)
        queued = client.empty.future()
        time.sleep(0.1)
        worst = 0.0
        for _ in range(20):
            start = time.perf_counter()
            running.status()
            worst = max(worst, time.perf_counter() - start)
        yield "status, worst of 20,", worst, 0.1
        start = time.perf_counter()
        assert queued.cancel() and queued.cancelled(), "a call that waits for its turn could not be cancelled"
        yield "cancel of a call that waits for its turn", time.perf_counter() - start, 0.1
        assert not sleeping.done(), "all this took longer than the sleep"
        start = time.perf_counter()
        running.stop(grace_s=0.2)
        yield "stop with a grace of 0.2 s", time.perf_counter() - start, 1.0
    finally:
        running.stop(grace_s=0)


@contextlib.contextmanager
def five_nodes() -> Generator[Callable[[], None]]:
    """Five services in processes, each with a handle of the one before; call what it gives to wait for them all."""
    program = rw.Program("five")
    names = [f"node{number}" for number in range(5)]
    before: Any = None
    for name in names:
        before = program.add(rw.Service(Linked, before), name=name)

    with program.launch(mode="processes") as running:

        def ready() -> None:
            for name in names:
                running.client(name).empty()

        yield ready


class Linked(Target):
    def __init__(self, before: Any) -> None:
        super().__init__()
        self.before = before


def killed(state: int) -> dict[str, Any]:
    """Kills a service whose state has been written, and calls it at once."""
    program = rw.Program("killed")
    program.add(rw.Service(Kept), name="target", restart=rw.Restart("on_failure"), checkpoint_s=0.1)
    with program.launch(mode="processes") as running:
        client = running.client("target")
        for _ in range(state):
            client.add()
        pid = client.pid()
        time.sleep(0.5)  # several checkpoints
        os.kill(pid, signal.SIGKILL)
        start = time.perf_counter()
        with rw.deadline(PATIENCE_S):
            value = client.value()
        elapsed = time.perf_counter() - start
        assert client.pid() != pid, "the service was not killed"
    return {"answered_s": elapsed, "restored": value == state, "outcome": f"{elapsed:.3f} s, state {value} of {state}"}
