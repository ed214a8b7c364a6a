"""A run over two hosts, one of which is lost in the middle."""

from __future__ import annotations

import os
import time

import numpy as np
import psutil
import pytest

import ropewalk as rw
from ropewalk.population import NoiseTable, OpenAIES, evaluate
from tests.population import fitnesses
from tests.population.local_loop import same_state
from tests.population.neighbours import lose_host, session_of_neighbours


def algorithm() -> OpenAIES:
    return OpenAIES(np.zeros(6), population=32, sigma=0.1, learning_rate=0.1, seed=5, noise=NoiseTable(2**14))


def agent_of_worker(_: int) -> int:
    time.sleep(0.01)
    return os.getppid()


def test_a_lost_host_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = evaluate(algorithm(), fitnesses.uneven, None, generations=6)
    with session_of_neighbours(monkeypatch) as session, rw.Pool(4, session=session) as pool:
        pool.wait_until_ready(120)
        agents = pool.map(agent_of_worker, range(32), chunksize=1)
        assert len(set(agents)) == 2
        lost: list[int] = []

        def lose(generation: int, **row: float) -> None:
            if generation == 2:
                lose_host(psutil.Process(agents[0]))
                lost.append(agents[0])

        run = evaluate(algorithm(), fitnesses.uneven, pool, generations=6, report=lose)
    assert lost and same_state(run.algorithm.state_dict(), undisturbed.algorithm.state_dict())
