"""Federated learning with GD-SEC or one of its presets: every worker is a row, and a round is a few operations.

    g, h, e: (workers, weights)      D = g - h + e ──▶ S by row ──▶ packed as it would travel, to get its length
                                     ghat = h + sum of S ──▶ theta <- theta - alpha ghat

The numbers are those that encoders and a decoder give for each worker (gd_sec.py), in the server's form: the server
owns plain SGD. Workers that are not asked in a round, or drop out of it, are silent; a worker whose compressor "rests"
is represented by its memory meanwhile. Bytes are those of the messages, as `wire.sparse` packs them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.buckets import BucketEntry, Layout
from ropewalk.exchange.compressors.compressor import Round
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.compressors.memoryless import value_seed
from ropewalk.exchange.federated.problems import Problem
from ropewalk.exchange.gd_sec_guards import DescentMonitor
from ropewalk.exchange.wire.sparse import pack_sparse
from ropewalk.exchange.wire.values import value_codec


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """The result of one round.

    Attributes:
        step: counts rounds, from 0.
        num_asked: number of workers that took part.
        num_speaking: number of them that sent something.
        uplink_bytes: bytes of the messages of all workers.
        downlink_bytes: bytes that each worker receives: the sum of all messages, which is all that it needs.
    """

    step: int
    num_asked: int
    num_speaking: int
    uplink_bytes: int
    downlink_bytes: int


@dataclass(slots=True)
class FederatedRun:
    """Rounds until the objective error was small enough, or until a maximum number of rounds.

    Attributes:
        num_rounds: number of rounds.
        objective_error: `f(theta) - f*` after the last round.
        reached: whether the error is as small as requested.
        uplink_bytes: bytes sent by all workers in all rounds.
        downlink_bytes: bytes sent to one worker in all rounds.
        trace: after each round, the objective error and all uplink bytes until then.
    """

    num_rounds: int = 0
    objective_error: float = float("inf")
    reached: bool = False
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    trace: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])


class Federation:
    """The workers of a problem, and their server."""

    def __init__(
        self,
        problem: Problem,
        compressor: GDSEC,
        *,
        alpha: float | None = None,
        participation: float = 1.0,
        drop_out: float = 0.0,
        batch: int | None = None,
        seed: int = 0,
        monitor: DescentMonitor | None = None,
    ) -> None:
        """Make workers with empty memories, and weights of zero.

        Args:
            problem: the problem that the workers solve.
            compressor: GD-SEC, or a preset.
            alpha: step size in the sum convention; None for 1 / L.
            participation: fraction of the workers that are asked in each round, drawn again each time.
            drop_out: probability that an asked worker does not answer.
            batch: number of rows that a worker draws for a gradient; None for all of its rows.
            seed: seed of all random choices.
            monitor: asserts the proved descent in every round (`GDSEC.monitor`); None for no check.

        Raises:
            ExchangeInvalid: a fraction is not between 0 and 1, or the compressor has factors.
        """
        if not 0 < participation <= 1 or not 0 <= drop_out < 1:
            raise ExchangeInvalid(
                f"participation is over 0 and up to 1, and drop_out from 0 and below 1; not {participation}, {drop_out}"
            )
        if compressor.factors:
            raise ExchangeInvalid("a federation has one threshold for all weights; leave out factors")
        self.problem = problem
        self.compressor = compressor
        self.alpha: float = 1 / problem.smoothness if alpha is None else alpha
        self.theta: Tensor = problem.start()
        self.memories: Tensor = torch.zeros(problem.num_workers, problem.num_weights, dtype=torch.float64)
        self.errors: Tensor = torch.zeros_like(self.memories)
        """h_m and e_m by row, and h."""
        self.memory: Tensor = torch.zeros_like(self.theta)
        self.step: int = 0
        self.applied: Tensor | None = None
        """The last applied update, and the change of the weights by it; None before the first round."""
        self.moved: Tensor | None = None
        self._participation, self._drop_out, self._batch = participation, drop_out, batch
        self._monitor = monitor
        self._random = torch.Generator().manual_seed(seed)
        self._layout = Layout((BucketEntry("theta", (problem.num_weights,), torch.float64),))

    def __repr__(self) -> str:
        return f"<Federation {self.problem!r} step={self.step}>"

    def run(self, max_rounds: int, objective_error: float = 0.0) -> FederatedRun:
        """Run at most `max_rounds` rounds, until `f(theta) - f*` is at most `objective_error`; return their record."""
        least = self.problem.value(self.problem.optimum)
        run = FederatedRun()
        while run.num_rounds < max_rounds and not run.reached:
            record = self.round()
            run.num_rounds += 1
            run.uplink_bytes += record.uplink_bytes
            run.downlink_bytes += record.downlink_bytes
            run.objective_error = self.problem.value(self.theta) - least
            run.reached = run.objective_error <= objective_error
            run.trace.append((run.objective_error, run.uplink_bytes))
            # Also true for NaN: the run has diverged.
            if not run.objective_error < 1e9:
                break
        return run

    def round(self, asked: Tensor | None = None) -> RoundRecord:
        """Ask workers, apply their messages, and update the weights.

        Args:
            asked: the workers that take part, (workers,), booleans; drawn if None.

        Returns:
            The record of the round.

        Raises:
            DescentViolated: there is a monitor, and its inequality does not hold.
        """
        if self._monitor is not None:
            gradient = self.problem.gradients(self.theta).sum(0)
            self._monitor.check(self.theta, self.problem.value(self.theta), gradient)
        if asked is None:
            asked = self.asked()
        said, uplink_bytes = self._say(asked)
        total = said.sum(0)
        self.applied = self.memory + total
        self.memory += self.compressor.memory_rate * total
        self.moved = -self.alpha * self.applied
        self.theta = self.theta + self.moved
        places = total.nonzero()[:, 0]
        down = pack_sparse(self._layout, places.numpy(), total[places].numpy())
        record = RoundRecord(self.step, int(asked.sum()), int(said.any(1).sum()), uplink_bytes, len(down.data))
        self.step += 1
        return record

    def asked(self) -> Tensor:
        """Draw the workers that take part in the next round: (workers,), booleans."""
        size = self.problem.num_workers
        order = torch.randperm(size, generator=self._random)
        asked = torch.zeros(size, dtype=torch.bool)
        asked[order[: max(1, round(self._participation * size))]] = True
        asked &= torch.rand(size, generator=self._random) >= self._drop_out
        if self.compressor.speakers is not None:
            asked &= torch.tensor([self.compressor.speaks(Round(self.step, rank, size)) for rank in range(size)])
        return asked

    def _say(self, asked: Tensor) -> tuple[Tensor, int]:
        """Return S of all workers, and its number of bytes; update memories and errors."""
        compressor = self.compressor
        # A resting worker computes nothing; its row stays as it is.
        rows = asked.nonzero()[:, 0] if compressor.silent == "rests" else torch.arange(len(asked))
        gradients = self.problem.gradients(
            self.theta, rows if len(rows) < len(asked) else None, self._batch, self._random
        )
        difference = gradients - self.memories[rows] + self.errors[rows]
        loud = self._loud(difference) & asked[rows, None]
        said = torch.where(loud, difference, 0.0)
        num_bytes = self._send(rows, loud, said)
        if compressor.error_correction:
            self.errors[rows] = difference - said
        self.memories[rows] += compressor.memory_rate * said
        return said, num_bytes

    def _loud(self, difference: Tensor) -> Tensor:
        """Return where D is sent, by row and component, according to the test."""
        compressor = self.compressor
        if compressor.density is not None:
            num = max(1, round(compressor.density * self.problem.num_weights))
            places = difference.abs().topk(num, dim=1, sorted=False).indices
            largest = torch.zeros_like(difference, dtype=torch.bool).scatter_(1, places, value=True)
            return largest & difference.any(1)[:, None]
        in_paper_form = compressor.xi is not None
        reference = self.moved if in_paper_form else self.applied
        factor = (compressor.xi if compressor.xi is not None else compressor.c) / self.problem.num_workers
        if reference is None:
            return difference != 0
        if compressor.per == "component":
            return difference.abs() > factor * reference.abs()
        # All weights are one layer and one bucket.
        limit = factor * float(reference.square().sum().sqrt())
        return (difference.square().sum(1).sqrt() > limit)[:, None] & (difference != 0)

    def _send(self, ranks: Tensor, loud: Tensor, said: Tensor) -> int:
        """Pack the messages of these workers; where values are rounded, `said` becomes the decoded values."""
        codec = self.compressor.values
        num_bytes = 0
        # Numpy arrays over the memory of the tensors: for thousands of small operations numpy has less overhead.
        sent, rows = loud.numpy(), said.numpy()
        for row in np.flatnonzero(sent.any(1)):
            places = np.flatnonzero(sent[row])
            values = rows[row, places]
            seed = value_seed(Round(self.step, int(ranks[row])), self._layout)
            num_bytes += len(pack_sparse(self._layout, places, values, codec, seed).data)
            if codec != "same":
                rows[row, places] = value_codec(codec).heard(values, seed)
        return num_bytes
