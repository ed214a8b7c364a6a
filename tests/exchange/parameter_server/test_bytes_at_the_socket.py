"""GD-SEC against gradient descent, in bytes that pass the socket of the workers on their way to the server."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
import torch

from ropewalk.exchange.compressors import Compressor, NoCompression
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.exchange import StepRecord
from ropewalk.exchange.federated.problems import Problem
from ropewalk.exchange.federated.simulation import Federation
from ropewalk.exchange.parameter_server.parameter_server import HEADER_BYTES, ParameterServer
from ropewalk.exchange.parameter_server.server_sgd import ServerSGD
from ropewalk.exchange.parameter_server.shard_client import Attempt, Letter
from tests.exchange.federated.bundled import breast_cancer, digits_parity
from tests.exchange.parameter_server.running import servers
from tests.exchange.parameter_server.socket_bytes import Wire, tapped
from tests.exchange.parameter_server.star_group import StarGroup


@dataclass
class Uplink:
    """What was found in the stream of the workers: of messages, and beside them."""

    payload: int = 0
    headers: int = 0

    def add(self, wire: Wire, said: list[bytes]) -> None:
        """Find a round's messages in what was sent meanwhile."""
        streams = wire.take()
        # The workers' stream names the method that they call; the server's does not.
        ours = b"".join(stream for stream in streams if b"push" in stream)
        for data in said:
            assert data in ours
        size = sum(map(len, said))
        self.payload += size
        self.headers += len(ours) - size


class Overheard(ParameterServer):
    """Tells what it pushes."""

    said: list[bytes]

    def encode(self, key: int, attempt: Attempt) -> Letter | None:
        letter = super().encode(key, attempt)
        if letter is not None:
            self.said.append(letter.data)
        return letter


def rounds(problem: Problem, compressor: Compressor, uplink: Uplink) -> Generator[torch.Tensor]:
    """Train with the paper's server, and give the weights after each round; one thread plays all workers."""
    names = [f"worker-{rank}" for rank in range(problem.num_workers)]
    optimizer = ServerSGD(1 / problem.smoothness, reduction="sum")
    with servers(1) as running, tapped() as wire, ExitStack() as stack:
        client = running.client("servers")
        workers: list[tuple[Overheard, torch.Tensor]] = []
        for rank in range(problem.num_workers):
            exchange = Overheard(client, compressor, optimizer=optimizer, sparse_answers=False)
            exchange.said = []
            theta = problem.start()
            exchange.bind([("theta", theta)], StarGroup(rank, names))
            stack.callback(exchange.close)
            workers.append((exchange, theta))
        wire.take()
        step = 0
        while True:
            slopes = problem.gradients(workers[0][1])
            for (exchange, _), slope in zip(workers, slopes, strict=True):
                exchange.begin(StepRecord(step))
                exchange.ready("theta", slope.clone())
            for exchange, theta in workers:
                exchange.finish()
                assert torch.equal(theta, workers[0][1])
            uplink.add(wire, [exchange.said.pop() for exchange, _ in workers])
            assert not any(exchange.said for exchange, _ in workers)
            yield workers[0][1]
            step += 1


@pytest.mark.parametrize(
    ("make", "error"),
    [
        pytest.param(digits_parity, 1e-5, marks=pytest.mark.soak),
        pytest.param(breast_cancer, 1e-5, marks=pytest.mark.soak),
        (breast_cancer, 1e-3),
    ],
)
def test_gd_sec_takes_a_few_percent_of_the_bytes_of_gradient_descent_at_the_socket(
    make: Callable[[], Problem], error: float
) -> None:
    """Sum form, float64, c = 100, beta = 0.01, to an objective error (the paper's is 1e-5); the optimum is Newton's."""
    problem = make()
    least, alpha = problem.value(problem.optimum), 1 / problem.smoothness

    # Gradient descent: what a round costs at the socket, and how many it takes.
    dense, theta, num_dense = Uplink(), problem.start(), 0
    descent = rounds(problem, NoCompression(), dense)
    weights = [next(descent) for _ in range(3)][-1]
    descent.close()
    while problem.value(theta) - least > error:
        theta = theta - alpha * problem.gradients(theta).sum(0)
        num_dense += 1
        if num_dense == 3:
            torch.testing.assert_close(weights, theta, rtol=0, atol=1e-14)
    assert dense.payload == 3 * problem.num_workers * (8 * problem.num_weights + 3)

    compressor = GDSEC(xi=100 / alpha, alpha=alpha, beta=0.01)
    sparse, num_sparse = Uplink(), 0
    training = rounds(problem, compressor, sparse)
    for theta in training:
        num_sparse += 1
        if problem.value(theta) - least <= error or num_sparse > 2 * num_dense:
            break
    training.close()
    print(
        f"\n{make.__name__}: {num_sparse} rounds against {num_dense}; payload {sparse.payload} bytes against "
        f"{num_dense * dense.payload // 3} ({300 * sparse.payload / num_dense / dense.payload:.2f} %); headers "
        f"{sparse.headers / num_sparse / problem.num_workers:.1f} bytes a push and pull"
    )
    assert sparse.headers / num_sparse / problem.num_workers == pytest.approx(HEADER_BYTES, rel=0.1)
    assert num_sparse <= 1.1 * num_dense
    assert sparse.payload <= 0.05 * num_dense * dense.payload / 3

    # The simulation counts the same bytes, but for components that lie at the threshold to the last bit.
    run = Federation(problem, compressor).run(2 * num_dense, error)
    assert run.num_rounds == num_sparse
    assert run.uplink_bytes == pytest.approx(sparse.payload, rel=0.01)
