"""Real processes that are killed, and messages that are late, doubled or damaged: the weights do not show it."""

from __future__ import annotations

import functools
import os
import signal
import time
from typing import Any

import pytest
import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.exchange.exchange import StepRecord
from ropewalk.exchange.parameter_server.parameter_server import ParameterServer
from ropewalk.exchange.parameter_server.server_sgd import ServerSGD
from ropewalk.exchange.parameter_server.service import ParameterShard
from ropewalk.exchange.parameter_server.star_group import StarGroup
from tests.exchange.parameter_server.running import gradients, model

pytestmark = pytest.mark.timeout(60)

STEPS, WORKERS, SHARDS = 16, 3, 2


class Shard(ParameterShard):
    """Tells who it is."""

    @rw.idempotent
    def pid(self) -> int:
        return os.getpid()


class Progress:
    """Hears how far workers are, and keeps their last weights."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._weights: dict[int, dict[str, Tensor]] = {}
        self._lives: dict[int, int] = {}

    def tell(self, rank: int, step: int, weights: dict[str, Tensor] | None = None) -> None:
        self._steps[rank] = step
        if weights is not None:
            self._weights[rank] = weights

    @rw.idempotent
    def slowest(self) -> int:
        return min(self._steps.values()) if len(self._steps) == WORKERS else -1

    @rw.idempotent
    def weights(self) -> dict[int, dict[str, Tensor]]:
        return self._weights


def slope(weights: dict[str, Tensor], rank: int, step: int) -> dict[str, Tensor]:
    """Depends on the weights, so that a mistake in any step is seen in the last."""
    return {name: 0.3 * weights[name] + found for name, found in gradients(rank, step).items()}


def train(servers: rw.Client, progress: rw.Client, options: dict[str, Any], dies_at: int, pause_s: float) -> None:
    """Take steps; in its first life, rank 1 kills itself when half of the pieces of a step are pushed."""
    torch.set_num_threads(1)
    group = StarGroup.of_node()
    mine = model()
    exchange = ParameterServer(servers, piece_bytes=200, **options)
    exchange.bind(mine.items(), group)
    for step in range(exchange.next_step, STEPS):
        exchange.begin(StepRecord(step))
        found = slope(mine, group.rank, step)
        dies = (step, group.rank, rw.current_node().generation) == (dies_at, 1, 0)
        for name in list(found)[: 3 if dies else None]:
            exchange.ready(name, found[name])
        if dies:
            before = group.traffic.sent_bytes
            while group.traffic.sent_bytes == before:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)
        exchange.finish()
        progress.tell(group.rank, step)
        time.sleep(pause_s)
    progress.tell(group.rank, STEPS, mine)
    exchange.close()


def weights_after(
    mode: Any = "processes",
    *,
    dies_at: int = -1,
    kill_shard_at: int | None = None,
    checkpoint_s: float = 0.05,
    pause_s: float = 0.0,
    **options: Any,
) -> dict[int, dict[str, Tensor]]:
    """The weights of each worker at the end of a program with faults."""
    program = rw.Program("faults")
    shards = program.add(
        rw.Service(Shard), name="servers", replicas=SHARDS, restart="on_failure", checkpoint_s=checkpoint_s
    )
    progress = program.add(rw.Service(Progress), name="progress")
    worker = rw.Worker(
        train, shards, progress, {"optimizer": ServerSGD(0.1, momentum=0.5), **options}, dies_at, pause_s
    )
    program.add(worker, name="workers", replicas=WORKERS, restart="on_failure")
    with program.launch(mode) as running:
        heard = running.client("progress")
        if kill_shard_at is not None:
            while heard.slowest() < kill_shard_at:
                time.sleep(0.005)
            os.kill(running.client("servers")[0].pid(), signal.SIGKILL)
        while heard.slowest() < STEPS:
            time.sleep(0.01)
        return heard.weights()


@functools.cache
def undisturbed() -> dict[str, Tensor]:
    """By one process and plain arithmetic, in the order of ranks."""
    mine, velocity = model(), {name: torch.zeros_like(value) for name, value in model().items()}
    for step in range(STEPS):
        found = [slope(mine, rank, step) for rank in range(WORKERS)]
        for name in mine:
            total = functools.reduce(torch.add, (one[name] for one in found))
            velocity[name] = total / WORKERS if step == 0 else 0.5 * velocity[name] + total / WORKERS
            mine[name] = mine[name] - 0.1 * velocity[name]
    return mine


def assert_undisturbed(found: dict[int, dict[str, Tensor]]) -> None:
    assert len(found) == WORKERS
    for weights in found.values():
        for name, value in undisturbed().items():
            assert torch.equal(weights[name], value), name


def test_a_worker_killed_in_mid_push_comes_back_and_pushes_again() -> None:
    assert_undisturbed(weights_after(dies_at=7))


def test_a_shard_that_is_killed_comes_back_from_its_state_and_is_sent_what_it_lacks() -> None:
    assert_undisturbed(weights_after(kill_shard_at=8, pause_s=0.03))


def test_a_shard_that_was_killed_before_it_saved_anything_is_sent_everything() -> None:
    assert_undisturbed(weights_after(kill_shard_at=4, checkpoint_s=1000.0))
