"""Who trains a job in the benchmark of pipelines: one process, torch.distributed.pipelining, and ours.

Processes of other contenders are our children and wait on a pipe between their turns, so that nobody takes processor
time in another's turn. All are given the same weights and data and say the loss of each step, which must be the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Protocol

import probes
import torch
import torch.distributed as dist
from pipeline_jobs import RATE, Job, mean_loss
from sleeping import without_hooks
from torch import Tensor, nn

from ropewalk.pipeline.plans import Plan
from ropewalk.training.trainer import Trainer
from ropewalk.training.trainer_options import Sources

Loss = Callable[[Tensor, Tensor], Tensor]


class Took(NamedTuple):
    """What consecutive steps took."""

    seconds: float
    #: Of all processes, all threads.
    cpu_s: float
    #: Mean loss of the last step.
    loss: float


class Contender(Protocol):
    """Trains a job step by step."""

    def steps(self, num: int) -> Took: ...
    def close(self) -> None: ...


class Children:
    """Processes that do `steps(num)` at a command, and answer when they began and ended, their CPU time and loss."""

    def __init__(self, target: Callable[..., Any], num: int, *arguments: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for rank in range(num):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(
                target=_serve, args=(theirs, target, rank, num, self._folder.name, *arguments), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            assert pipe.recv() == "ready"

    def steps(self, num: int) -> Took:
        for pipe in self._pipes:
            pipe.send(num)
        begun, ended, cpu_s, losses = zip(*[pipe.recv() for pipe in self._pipes], strict=True)
        (loss,) = [one for one in losses if one is not None]
        return Took(max(ended) - min(begun), sum(cpu_s), loss)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(5)
            process.kill()
        self._folder.cleanup()


def _serve(pipe: Connection, target: Callable[..., Any], rank: int, size: int, folder: str, *arguments: Any) -> None:
    torch.set_num_threads(1)
    with target(rank, size, folder, *arguments) as (step, together):
        pipe.send("ready")
        with contextlib.suppress(EOFError):
            while True:
                num = pipe.recv()
                together()
                begun, cpu_s = time.monotonic(), time.process_time()
                loss = None
                for _ in range(num):
                    loss = step()
                loss = None if loss is None else float(loss)
                pipe.send((begun, time.monotonic(), time.process_time() - cpu_s, loss))
    # Threads of gloo may outlive the group, and what they wait for has ended.
    os._exit(0)


# --- one process ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def single(rank: int, size: int, folder: str, job: Job, loss_fn: Loss) -> Generator[Any]:
    """The same micro-batches one after the other, and an update."""
    model, x, y = job.built()
    optimizer = torch.optim.SGD(model.parameters(), RATE)

    def step() -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for part, labels in zip(x.chunk(job.micro_batches), y.chunk(job.micro_batches), strict=True):
            loss = loss_fn(model(part), labels) / job.micro_batches
            loss.backward()  # pyright: ignore[reportUnknownMemberType]
            total += loss.detach()
        optimizer.step()
        return total

    yield step, lambda: None


# --- torch.distributed.pipelining -------------------------------------------------------------------------------------

SCHEDULES = {"gpipe": "ScheduleGPipe", "one_f_one_b": "Schedule1F1B", "interleaved": "ScheduleInterleaved1F1B"}


@contextlib.contextmanager
def pipelining(rank: int, size: int, folder: str, job: Job, loss_fn: Loss) -> Generator[Any]:
    """The same stages over gloo; each rank has the inputs or the labels already."""
    torch_pipelining = importlib.import_module("torch.distributed.pipelining")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    model, x, y = job.built()
    own: list[Any] = []
    parameters: list[nn.Parameter] = []
    for number, span in enumerate(job.stages(len(model))):
        if number % size == rank:
            part = nn.Sequential(*[model[layer] for layer in span])
            parameters += part.parameters()
            own.append(torch_pipelining.PipelineStage(part, number, job.num_stages, torch.device("cpu")))
    make = getattr(torch_pipelining, SCHEDULES[job.schedule])
    schedule = make(own if job.schedule == "interleaved" else own[0], job.micro_batches, loss_fn=loss_fn)
    optimizer = torch.optim.SGD(parameters, RATE)

    def step() -> Tensor | None:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        inputs = (x,) if rank == 0 else ()
        labels = {"target": y, "losses": losses} if rank == size - 1 else {}
        schedule.step(*inputs, **labels, return_outputs=False)
        optimizer.step()
        return torch.stack([loss.detach() for loss in losses]).mean() if losses else None

    def together() -> None:
        dist.barrier()

    yield step, together


# --- ours -------------------------------------------------------------------------------------------------------------


class Ours:
    """`ropewalk.Trainer`, on processes unless BENCHMARK_INLINE is set.

    Args:
        job: what to train.
        loss_fn: of outputs and labels.
        plan: None: the job's, with sizes measured in one pass.
        optimizer: None: that of everybody.
        own_data: stages read inputs and labels by themselves, as the ranks of the other contenders do.
        options: further ones of the trainer.
    """

    def __init__(
        self,
        job: Job,
        loss_fn: Loss = mean_loss,
        *,
        plan: Plan | None = None,
        optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
        own_data: bool = False,
        **options: Any,
    ) -> None:
        torch.set_num_threads(1)
        model, x, y = job.built()
        self._batch = () if own_data else (x, y)
        self._open = contextlib.ExitStack()
        trainer = Trainer(
            model,
            loss_fn,
            optimizer or sgd,
            plan or job.plan(),
            example_inputs=x[: len(x) // job.micro_batches],
            sources=Sources(data=functools.partial(_mini_batches, job) if own_data else None),
            inline=bool(os.environ.get("BENCHMARK_INLINE")),
            **options,
        )
        with without_hooks():
            self.trainer = self._open.enter_context(trainer)

    def steps(self, num: int, before_last: Callable[[], object] = lambda: None) -> Took:
        """Some steps, and something to be done before the last of them is admitted, when others are under way."""
        family = probes.family()
        before = probes.cpu_s(family)
        begun = time.perf_counter()
        for _ in range(num - 1):
            self.trainer.step(*self._batch)
        before_last()
        handle = self.trainer.step(*self._batch)
        loss = float(handle.metrics().loss)
        elapsed = time.perf_counter() - begun
        cpu_s = 0.0 if family != probes.family() else probes.cpu_s(family) - before  # of one that died nobody knows
        return Took(elapsed, cpu_s, loss)

    def close(self) -> None:
        self._open.close()


def _mini_batches(job: Job, first_step: int) -> Iterator[tuple[Tensor, Tensor]]:
    _, x, y = job.built()
    while True:
        yield x, y


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """The optimizer of everybody."""
    return torch.optim.SGD(parameters, RATE)


# --- opening them -----------------------------------------------------------------------------------------------------

OPENERS: dict[str, Callable[[Job, Loss], Contender]] = {
    "ropewalk": lambda job, loss_fn: Ours(job, loss_fn),
    "own data": lambda job, loss_fn: Ours(job, loss_fn, own_data=True),
    "torch": lambda job, loss_fn: Children(pipelining, job.num_workers, job, loss_fn),
    "single": lambda job, loss_fn: Children(single, 1, job, loss_fn),
}


@contextlib.contextmanager
def opened(jobs: dict[str, tuple[str, Job]], loss_fn: Loss = mean_loss) -> Generator[dict[str, Contender]]:
    """Contenders by the names of the table: each a kind (of `OPENERS`) and its job."""
    with contextlib.ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for name, (kind, job) in jobs.items():
            contenders[name] = OPENERS[kind](job, loss_fn)
            stack.callback(contenders[name].close)
        yield contenders


def same(job: Job, *kinds: str) -> dict[str, tuple[str, Job]]:
    """The same job for everybody who can run its schedule."""
    return {kind: (kind, dataclasses.replace(job)) for kind in kinds if kind != "torch" or job.schedule in SCHEDULES}
