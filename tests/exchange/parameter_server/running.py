"""Real servers, and workers that are threads of the test."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.exchange.exchange import Exchange, StepRecord
from ropewalk.exchange.groups.group import Group
from ropewalk.exchange.groups.thread_group import ThreadGroup
from ropewalk.exchange.parameter_server.parameter_server import ParameterServer
from ropewalk.exchange.parameter_server.service import ParameterShard
from ropewalk.program.running import RunningProgram
from tests.patience import PATIENCE_S

R = TypeVar("R")


@contextlib.contextmanager
def servers(
    num_shards: int = 2, mode: Literal["threads", "processes"] = "threads", **options: Any
) -> Generator[RunningProgram]:
    """A program of nothing but shards, called "servers"."""
    program = rw.Program("parameter-server")
    program.add(rw.Service(ParameterShard), name="servers", replicas=num_shards, **options)
    with program.launch(mode) as running:
        running.wait_ready(120)
        yield running


def by_members(body: Callable[[int], R], num_members: int, timeout_s: float = 2 * PATIENCE_S) -> list[R]:
    """Run a body for each rank, each in a thread; raises what the first of them raised.

    It waits longer than an exchange does, which says what it waits for.
    """
    results: list[Any] = [None] * num_members
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = body(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(num_members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
        assert not thread.is_alive(), f"a member hangs; others raised {errors}"
    if errors:
        raise errors[0]
    return results


def model() -> dict[str, Tensor]:
    """Parameters of several shapes; one is larger than a shard's share."""
    generator = torch.Generator().manual_seed(3)
    shapes = {"embedding": (40, 7), "first.weight": (9, 5), "first.bias": (9,), "scale": (), "last.weight": (3, 9)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def gradients(rank: int, step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return {name: torch.randn(value.shape, generator=generator) for name, value in model().items()}


def run_steps(
    exchange: Exchange, rank: int, steps: Sequence[int], samples: Callable[[int], float] = lambda _rank: 1.0
) -> list[dict[str, Tensor]]:
    """The means of these steps, with gradients made ready as a backward does."""
    means: list[dict[str, Tensor]] = []
    for step in steps:
        found = gradients(rank, step)
        exchange.begin(StepRecord(step, samples=samples(rank)))
        for name in reversed(found):
            exchange.ready(name, found[name])
        exchange.finish()
        means.append(found)
    return means


def groups(size: int, epoch: int = 0) -> list[ThreadGroup]:
    return ThreadGroup.make(size, epoch)


@contextlib.contextmanager
def member(
    client: Any, group: Group, parameters: dict[str, Tensor] | None = None, **options: Any
) -> Generator[ParameterServer]:
    """An exchange that is bound to the test's model, in small pieces."""
    exchange = ParameterServer(client, **{"piece_bytes": 256, **options})  # pyright: ignore[reportArgumentType]
    exchange.bind((model() if parameters is None else parameters).items(), group)
    try:
        yield exchange
    finally:
        exchange.close()
