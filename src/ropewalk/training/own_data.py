"""Data that stage processes read by themselves, so that it does not pass through the launcher.

    data(first_step) ──▶ mini-batches (x, y), from that step on, the same in every process that asks
    data(first_step, shard) ──▶ only the samples of each mini-batch that are of this replica's micro-batches

A process that restarts, or goes back to a snapshot, calls the function again with its next step. Random numbers that it
draws follow from the seed of the run (`DataRandomness`), so that several processes that read by themselves agree:

    process of stage 0    data() shuffles by the run's seed ─▶ x ─┐ belong together, also after one of the processes
    process of stage 2    data() shuffles by the run's seed ─▶ y ─┘ was replaced by one that has drawn nothing yet
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import numpy as np
import torch

from ropewalk.errors import PlanInvalid
from ropewalk.pipeline.stages.losses import kind_of
from ropewalk.pipeline.stages.micro_batches import MicroBatchPiece, split
from ropewalk.pipeline.stages.randomness import micro_batch_seed
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.model_inputs import as_arguments

MakesData = Callable[..., Iterable[tuple[Any, Any]]]
"""The user's function: called with the first step that is wanted, and, if it has an argument called `shard`, with the
`DataShard` of the process. If there is no place for the step, it begins at step 0, and earlier pairs are skipped."""


@dataclass(frozen=True, slots=True)
class DataShard:
    """The samples of each mini-batch that a process needs: the micro-batches replica, replica + replicas, ..."""

    replica: int
    replicas: int
    micro_batches: int
    """The number of micro-batches in a whole mini-batch."""


class OwnData:
    """The mini-batches of one process, cut into micro-batches.

    Args:
        make: the user's function.
        graph: the graph of the model.
        shard: the samples that this process needs.
        seed: the seed of the run, from which random numbers of the data follow.

    Raises:
        PlanInvalid: the function takes shards, and micro-batches cannot be divided evenly among them.
    """

    def __init__(self, make: MakesData, graph: ModelGraph, shard: DataShard, seed: int) -> None:
        self._make = make
        self._graph = graph
        self._shard = shard
        self._seed = seed
        self._name = getattr(getattr(make, "func", make), "__qualname__", type(make).__name__)
        """The name of the function that the user knows; `func` is that of a functools.partial."""
        parameters = inspect.signature(make).parameters
        self._takes_shard = "shard" in parameters
        # A functools.partial shows what it gives already, by keyword.
        places = [one.name for one in parameters.values() if one.kind not in (one.KEYWORD_ONLY, one.VAR_KEYWORD)]
        self._takes_step = bool(set(places) - {"shard"})
        if self._takes_shard and shard.micro_batches % shard.replicas:
            raise PlanInvalid(
                f"{shard.micro_batches} micro-batches cannot be shared out evenly among {shard.replicas} replicas that "
                f"read shards; use a multiple of {shard.replicas}, or leave out the argument shard"
            )
        self._batches: Iterator[tuple[Any, Any]] = iter(())
        self._next_step = -1
        self._randomness = DataRandomness(0)

    def batch(self, step: int) -> tuple[Any, Any]:
        """Return the mini-batch of a step, or the part of it that is in the shard.

        Args:
            step: the number of the step in the run.

        Raises:
            ValueError: the data has ended, or an item is not a pair.
            TypeError: the function returned nothing to iterate over.
        """
        try:
            if step != self._next_step:
                self._begin(step)
            self._next_step = step + 1
            with self._randomness.drawing():
                pair: Any = next(self._batches)
        except StopIteration:
            raise ValueError(
                f"the data has ended: {self._name} gave no mini-batch for step {step}. Make it endless (for several "
                f"passes over a data set, begin again in it), or take fewer steps"
            ) from None
        if not (isinstance(pair, tuple | list) and len(cast("list[Any]", pair)) == 2):
            raise ValueError(
                f"data gives mini-batches that are pairs (x, y), but in step {step} it gave {kind_of(pair)}"
            )
        return cast("tuple[Any, Any]", pair)

    def pieces(self, step: int) -> dict[int, MicroBatchPiece]:
        """Return the micro-batches of a step by their index in it; with shards, only those of this replica.

        Args:
            step: the number of the step in the run.

        Raises:
            ValueError: the data has ended, or a mini-batch has too few samples.
        """
        x, y = self.batch(step)
        shard = self._shard
        indices = range(shard.replica if self._takes_shard else 0, shard.micro_batches, self._stride)
        args, kwargs = as_arguments(x)
        inputs = self._graph.bind(*args, **kwargs)
        pieces = split(inputs, y, len(indices), step=step, whole=self._graph.whole_inputs)
        if len(pieces) < len(indices):
            raise ValueError(
                f"the mini-batch of step {step} has {len(pieces)} samples, and is cut into {len(indices)} "
                f"micro-batches; data that processes read by themselves has at least one sample for each of them"
            )
        return {
            index: MicroBatchPiece(step, index, one.inputs, one.labels, one.num_samples)
            for index, one in zip(indices, pieces, strict=True)
        }

    @property
    def _stride(self) -> int:
        return self._shard.replicas if self._takes_shard else 1

    def _begin(self, step: int) -> None:
        keywords = {"shard": self._shard} if self._takes_shard else {}
        first, skipped = (step, 0) if self._takes_step else (0, step)
        self._randomness = DataRandomness(micro_batch_seed(self._seed, first, 0, "data"))
        with self._randomness.drawing():
            made = self._make(step, **keywords) if self._takes_step else self._make(**keywords)
            if not (hasattr(made, "__iter__") or hasattr(made, "__getitem__")):
                raise TypeError(
                    f"data yields pairs (x, y), but {self._name} returned {kind_of(made)}; write it with `yield`, or "
                    f"return an iterable of pairs, such as a DataLoader"
                )
            self._batches = islice(iter(made), skipped, None)


_numpy: Any = np.random


class DataRandomness:
    """The generators that a user's data draws from by default: torch's on the CPU, Python's and numpy's.

    Args:
        seed: what they begin with, not negative.
    """

    def __init__(self, seed: int) -> None:
        self._torch = torch.Generator().manual_seed(seed).get_state()
        self._python = random.Random(seed).getstate()
        self._numpy: Any = _numpy.MT19937(seed)

    @contextmanager
    def drawing(self) -> Generator[None]:
        """In this context numbers go on from where the last one ended; those outside are not disturbed."""
        outside = torch.get_rng_state(), random.getstate()
        bits = _numpy.get_bit_generator()  # to swap it takes 1 µs, and to set its state 150
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        _numpy.set_bit_generator(self._numpy)
        try:
            yield
        finally:
            self._torch, self._python = torch.get_rng_state(), random.getstate()
            torch.set_rng_state(outside[0])
            random.setstate(outside[1])
            _numpy.set_bit_generator(bits)
