"""The exchange over real servers: what it computes, by whatever way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ropewalk.errors import ExchangeInvalid, ExchangeStalled
from ropewalk.exchange.exchange import StepRecord
from ropewalk.exchange.parameter_server.parameter_server import ParameterServer
from ropewalk.exchange.parameter_server.server_sgd import SGD
from tests.exchange.parameter_server.running import by_members, gradients, groups, model, run_steps, servers

pytestmark = pytest.mark.timeout(60)

SIZE = 3


def exchanged(
    client: Any, num_steps: int = 3, samples: Any = lambda _rank: 1.0, **options: Any
) -> list[list[dict[str, Tensor]]]:
    members = groups(SIZE)

    def body(rank: int) -> list[dict[str, Tensor]]:
        exchange = ParameterServer(client, **{"piece_bytes": 256, **options})
        exchange.bind(model().items(), members[rank])
        try:
            return run_steps(exchange, rank, range(num_steps), samples)
        finally:
            exchange.close()

    return by_members(body, SIZE)


def weighted_mean(step: int, weights: list[float]) -> dict[str, Tensor]:
    found = [gradients(rank, step) for rank in range(SIZE)]
    return {
        name: sum((weight * one[name].double() for weight, one in zip(weights, found, strict=True)), torch.zeros(()))
        / sum(weights)
        for name in found[0]
    }


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_synchronous_reduction_is_the_mean_weighted_by_samples_to_1e_6_of_the_largest(num_shards: int) -> None:
    with servers(num_shards) as running:
        means = exchanged(running.client("servers"), samples=lambda rank: rank + 1.0)
    for step in range(3):
        expected = weighted_mean(step, [1.0, 2.0, 3.0])
        largest = max(float(value.abs().max()) for value in expected.values())
        for rank in range(SIZE):
            for name, value in expected.items():
                assert float((means[rank][step][name] - value).abs().max()) <= 1e-6 * largest
                assert torch.equal(means[rank][step][name], means[0][step][name])
