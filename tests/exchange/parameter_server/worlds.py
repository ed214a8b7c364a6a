"""Workers and a shard in one thread: any order of events, duplicates, late words and deaths, as a test wants them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ropewalk.exchange.buckets import BucketEntry, Layout
from ropewalk.exchange.compressors.compressor import Encoder, Round
from ropewalk.exchange.parameter_server.outcomes import Accepted, Behind, Enrolled, Pulled, ServerSettings
from ropewalk.exchange.parameter_server.pieces import tensor_of
from ropewalk.exchange.parameter_server.shard import Shard

SIZES = {0: 3, 1: 5}


def layouts() -> dict[int, Layout]:
    return {key: Layout((BucketEntry(f"p{key}", (size,), torch.float64),)) for key, size in SIZES.items()}


def present(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


def gradient(worker: str, step: int, key: int, attempt: int = 0) -> Tensor:
    seed = hash((int(worker[1:]), step, key, attempt)) & 0xFFFFFF
    return torch.randn(SIZES[key], dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@dataclass
class Pusher:
    """A worker that encodes what it is to say, and keeps it for replays.

    Attributes:
        sent: messages by step and key.
        got: what it pulled, by step and key.
    """

    name: str
    settings: ServerSettings
    rank: int
    size: int
    epoch: int = 0
    step: int = 0
    attempt: int = 0
    sent: dict[tuple[int, int], bytes] = field(default_factory=dict[tuple[int, int], bytes])
    got: dict[tuple[int, int], Tensor] = field(default_factory=dict[tuple[int, int], Tensor])
    pushed: set[int] = field(default_factory=set[int])
    encoders: Mapping[int, Encoder] = field(default_factory=dict[int, Encoder])

    def __post_init__(self) -> None:
        self.encoders = {key: self.settings.compressor.encoder(layout) for key, layout in layouts().items()}

    def message(self, key: int) -> bytes:
        if (self.step, key) not in self.sent:
            round_ = Round(self.step, self.rank, self.size, applied=self.applied(key))
            said = self.encoders[key].encode(gradient(self.name, self.step, key, self.attempt), round_)
            self.sent[self.step, key] = said.data.tobytes()
        return self.sent[self.step, key]

    def memory(self, key: int) -> Tensor:
        return present(self.encoders[key].memory)

    def error(self, key: int) -> Tensor:
        return present(self.encoders[key].error)

    def applied(self, key: int) -> Tensor | None:
        """The last sum, or how far the weights moved last."""
        last = self.got.get((self.step - 1, key))
        if last is None or not self.settings.optimizer:
            return last
        return last - self.got.get((self.step - 2, key), start()[key])

    def push(self, shard: Shard, key: int) -> None:
        """Push this step's message, and before it whatever the shard lacks."""
        data = self.message(key)
        outcome = shard.push(self.name, self.epoch, self.step, key, data, 1.0)
        if isinstance(outcome, Behind):
            for step in range(outcome.step, self.step + 1):
                assert shard.push(self.name, self.epoch, step, key, self.sent[step, key], 1.0) == Accepted()
        self.pushed.add(key)

    def pull(self, shard: Shard) -> None:
        """Take what is ready; with the last piece the step is done."""
        wanted = [key for key in self.pushed if (self.step, key) not in self.got]
        pulled = shard.pull(self.name, self.epoch, self.step, wanted)
        assert isinstance(pulled, Pulled)
        for key in pulled.behind:
            self.push(shard, key)
        for answer in pulled.answers:
            self.got[self.step, answer.key] = tensor_of(answer.data, torch.float64)
        if all((self.step, key) in self.got for key in SIZES):
            for encoder in self.encoders.values():
                encoder.commit()
            self.step += 1
            self.pushed.clear()

    def abort(self) -> None:
        """The step is taken back, and its gradients are computed again."""
        for key in SIZES:
            self.sent.pop((self.step, key), None)
            self.got.pop((self.step, key), None)
            self.encoders[key].abort()
        self.pushed.clear()
        self.attempt += 1


def formed(settings: ServerSettings, num_workers: int) -> tuple[Shard, list[Pusher]]:
    shard = Shard()
    return shard, joined(shard, settings, num_workers)


def joined(shard: Shard, settings: ServerSettings, num_workers: int) -> list[Pusher]:
    """The first workers of a shard."""
    shard.introduce(settings, layouts())
    names = [f"w{number}" for number in range(num_workers)]
    workers = [Pusher(name, settings, rank, num_workers) for rank, name in enumerate(names)]
    enrol(shard, workers, 0)
    if settings.optimizer:
        shard.provide(start())
    return workers


def start() -> dict[int, Tensor]:
    return {key: torch.linspace(-1, 1, size, dtype=torch.float64) for key, size in SIZES.items()}


def enrol(shard: Shard, workers: Sequence[Pusher], epoch: int) -> None:
    """All of them form the members of an epoch."""
    names = [worker.name for worker in workers]
    for rank, worker in enumerate(workers):
        worker.epoch, worker.rank, worker.size = epoch, rank, len(workers)
        memories = {
            key: encoder.memory for key, encoder in worker.encoders.items() if encoder.memory is not None and epoch
        }
        assert isinstance(shard.enrol(worker.name, epoch, names, worker.step, memories or None), Enrolled)


def restored(shard: Shard) -> Shard:
    """The same shard in another process."""
    copy = Shard()
    copy.load_state_dict(pickle.loads(pickle.dumps(shard.state_dict())))
    return copy
