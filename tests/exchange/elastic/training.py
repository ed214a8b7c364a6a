"""Training functions for programs in tests: they write down what they see, and misbehave where they are told to."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ropewalk.exchange.elastic.shares import batches
from ropewalk.exchange.elastic.worker import ElasticWorker
from tests.exchange.elastic.society import BATCH, SAMPLES, Data, make_model, weights_of

#: More than any test waits for.
_PASSES = 100_000
GRADIENT_BYTES = 100 * 100 * 4
"""Size of the gradient of `three_steps`."""
#: In place of a signal: the thread of the worker ends, which is a death where workers are threads.
DIE = 0


@dataclass(frozen=True)
class Mischief:
    """What a worker does to itself, at the end of its n-th backward, when other buckets are on their way."""

    worker: str
    backward: int
    signal: int


class Momentum:
    """SGD without `torch.optim`, whose first use imports for a second and more."""

    def __init__(self, parameters: Sequence[Tensor], lr: float = 0.1, momentum: float = 0.9) -> None:
        self._parameters = parameters
        self._lr, self._momentum = lr, momentum
        self._velocities = [torch.zeros_like(part) for part in parameters]

    def step(self) -> None:
        with torch.no_grad():
            for part, velocity in zip(self._parameters, self._velocities, strict=True):
                assert part.grad is not None
                velocity.mul_(self._momentum).add_(part.grad)
                part.add_(velocity, alpha=-self._lr)

    def state_dict(self) -> dict[str, Any]:
        return {"velocities": [velocity.clone() for velocity in self._velocities]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._velocities = [velocity.clone() for velocity in state["velocities"]]


def train(worker: ElasticWorker, folder: str, mischief: Sequence[Mischief] = ()) -> None:
    """Do steps until there is a file "enough"; then the last one to do a step leaves weights and history."""
    torch.set_num_threads(1)
    data, model = Data(), make_model(seed=int(worker.name.partition(".")[2].partition("#")[0]))
    trainer = worker.trainer(model, cast(Any, Momentum(list(model.parameters()))))

    (Path(folder) / f"{worker.name} {type(trainer.exchange).__name__}").touch()
    num_backwards = 0

    def misbehave(_: Tensor) -> None:
        nonlocal num_backwards
        num_backwards += 1
        for one in mischief:
            if one.worker == worker.name and one.backward == num_backwards:
                (Path(folder) / f"{one.worker} {one.signal.real}").write_text(str(time.time()))
                if one.signal == DIE:
                    raise SystemExit(1)
                os.kill(os.getpid(), one.signal)

    first = next(iter(model.parameters()))
    first.register_post_accumulate_grad_hook(misbehave)  # pyright: ignore[reportUnknownMemberType]
    with (Path(folder) / f"{worker.name}.log").open("a", buffering=1) as log:
        for batch in worker.batches(SAMPLES, BATCH, epochs=_PASSES, seed=5):
            trainer.step(batch, lambda indices: data.loss(model, indices))
            log.write(f"{time.time()} {trainer.num_steps} {trainer.size} {os.getpid()}\n")
            if (Path(folder) / "enough").exists():
                break
    if not trainer.left:
        torch.save((weights_of(model), worker.history(), trainer.num_steps), Path(folder) / f"{worker.name}.pt")


def three_steps(worker: ElasticWorker, took: str) -> None:
    """Do three steps, and write how many seconds they took."""
    model = torch.nn.Linear(100, 100, bias=False)
    trainer = worker.trainer(model, cast(Any, Momentum(list(model.parameters()))))
    began = time.monotonic()
    for batch in worker.batches(6, 2):
        trainer.step(batch, lambda indices: model(torch.ones(len(indices), 100)).square().mean())
    Path(took).write_text(str(time.monotonic() - began))


def fail(worker: ElasticWorker) -> None:
    """Raise in a step."""
    model = make_model()
    trainer = worker.trainer(model, cast(Any, Momentum(list(model.parameters()))))

    def loss_of(indices: Tensor) -> Tensor:
        raise KeyError(f"a mistake of {worker.name}")

    for batch in worker.batches(SAMPLES, BATCH):
        trainer.step(batch, loss_of)


def plain(num_steps: int) -> Tensor:
    """The weights after `num_steps` in one process."""
    data, model = Data(), make_model()
    optimizer = Momentum(list(model.parameters()))
    for _, batch in zip(range(num_steps), batches(SAMPLES, BATCH, epochs=_PASSES, seed=5), strict=False):
        model.zero_grad()
        data.loss(model, batch).backward()
        optimizer.step()
    return weights_of(model)


@dataclass(frozen=True)
class Line:
    """What a worker wrote after a step: when, after how many steps, of how many members, in which process."""

    at: float
    num_steps: int
    size: int
    pid: int


def log_of(folder: Path, worker: str) -> list[Line]:
    """What a worker has written so far."""
    file = folder / f"{worker}.log"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    complete = [line.split() for line in lines if line.endswith("\n")]
    return [Line(float(at), int(step), int(size), int(pid)) for at, step, size, pid in complete]
