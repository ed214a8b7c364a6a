"""Trainings in which something goes wrong, and the same ones undisturbed: for `test_faults`.

The model has what is hard to get right twice: dropout, batch normalisation, and an optimizer with state. What a
training must come to is said by the local executor, in one thread, where nothing can go wrong.

Some layers, losses and optimizers go wrong by themselves, at a chosen call and only once: a file says that it
has happened, since whoever does it again sits in another process.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional

import ropewalk as rw
from ropewalk.pipeline.local_executor import LocalExecutor
from ropewalk.pipeline.plans import Plan
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.training.timeouts import TrainerTimeouts
from ropewalk.training.trainer import Trainer
from ropewalk.training.trainer_options import ProcessOptions, Snapshots
from tests.patience import PATIENCE_S
from tests.pipeline.played_plans import even_cut, plan_of

SEED = 5
#: Of a mini-batch: its micro-batches are not of one size, and have two samples at least.
SAMPLES = 22
#: Numbers of a sample: 64 bytes, so that micro-batches lie alike in memory, cut or sent. Sums depend on that.
WIDTH = 16
#: Long enough for a busy machine, short enough that a test does not wait for long.
PATIENCE = TrainerTimeouts(start_s=PATIENCE_S, quiet_s=0.5, silent_s=5.0, stalled_s=40.0, replace_s=30.0, max_deaths=8)

# --- what is trained --------------------------------------------------------------------------------------------------


def layers(num_stages: int) -> nn.Sequential:
    """At least a layer with parameters for each of `num_stages` stages."""
    made: list[nn.Module] = []
    for number in range(num_stages):
        made += [nn.Linear(6 if made else WIDTH, 6), nn.Dropout(0.1), nn.Tanh()]
        if number % 2:
            made.append(nn.BatchNorm1d(6))
    return nn.Sequential(*made, nn.Linear(6, 3))


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 1e-2)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


@cache
def graph_of(num_stages: int) -> ModelGraph:
    """The graph of these layers, made once."""
    return traced(lambda: layers(num_stages))


def traced(make: Callable[[], nn.Module]) -> ModelGraph:
    """The graph of a model whose weights are always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = make()
    return trace(model, torch.zeros(4, WIDTH))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """A mini-batch, the same for a step each time."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(SAMPLES, WIDTH, generator=generator), torch.randint(3, (SAMPLES,), generator=generator)


@dataclass(frozen=True)
class Job:
    """A training."""

    schedule: str = "one_f_one_b"
    num_groups: int = 2
    replicas: int | tuple[int, ...] = 1
    num_steps: int = 8
    #: Gives the stages a Reduce before each Step.
    clip_norm: float | None = None
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] = adam
    #: In place of the usual layers.
    model: Callable[[], nn.Module] | None = None
    loss_fn: Callable[[Any, Any], Any] = functional.cross_entropy

    @property
    def num_stages(self) -> int:
        return self.num_groups * make_schedule(self.schedule).stages_per_worker

    @property
    def micro_batches(self) -> int:
        """As many as all schedules need."""
        if self.schedule in ("interleaved", "zb_v", "zb_h2") and self.num_groups == 3:
            return 6
        return 8 if self.replicas == 2 else 4

    @property
    def graph(self) -> ModelGraph:
        return graph_of(self.num_stages) if self.model is None else traced(self.model)

    def plan_of(self, graph: ModelGraph) -> Plan:
        """Stages of as many operators as possible alike."""
        schedule = make_schedule(self.schedule)
        return plan_of(
            graph,
            even_cut(graph, self.num_stages),
            schedule=self.schedule,
            micro_batches=self.micro_batches,
            replicas=self.replicas,
            devices=[schedule.group_of(stage, self.num_groups) for stage in range(self.num_stages)],
        )

    def trainer(self, session: rw.Session | None, **options: Any) -> Trainer:
        """On processes. Options may be those of the trainer, of its processes and of its updates."""
        graph = self.graph
        own: dict[str, Any] = {"session": session, "snapshots": Snapshots(every=2), "timeouts": PATIENCE}
        own |= {one.name: options.pop(one.name) for one in fields(ProcessOptions) if one.name in options}
        update: dict[str, Any] = {"clip_norm": self.clip_norm}
        update |= {one.name: options.pop(one.name) for one in fields(TrainingOptions) if one.name in options}
        return Trainer(
            graph,
            self.loss_fn,
            self.optimizer,
            self.plan_of(graph),
            seed=SEED,
            options=TrainingOptions(**update),
            processes=ProcessOptions(**own),
            **options,
        )


# --- what it must come to ---------------------------------------------------------------------------------------------


@dataclass
class Learnt:
    """What a training came to."""

    losses: list[list[float]]
    state: dict[str, Any]


@cache
def undisturbed(job: Job) -> Learnt:
    """In one thread."""
    graph = job.graph
    options = TrainingOptions(clip_norm=job.clip_norm)
    player = LocalExecutor(graph, job.loss_fn, job.optimizer, job.plan_of(graph), seed=SEED, options=options)
    steps = [player.step(*batch(step)) for step in range(job.num_steps)]
    state = player.state_dict()
    return Learnt([_values(one.losses) for one in steps], state)


def go_through(trainer: Trainer, job: Job, first: int = 0) -> Learnt:
    """All its steps, from one on."""
    handles = [trainer.step(*batch(step)) for step in range(first, job.num_steps)]
    state = trainer.state_dict()
    return Learnt([_values(handle.metrics().losses) for handle in handles], state)


def assert_same(found: Learnt, expected: Learnt) -> None:
    """To the last bit, losses and all."""
    assert found.losses == expected.losses
    wrong = sorted(differences(found.state, expected.state))
    assert not wrong, wrong


def assert_near(found: Learnt, expected: Learnt, within: float = 1e-6) -> None:
    """Where sums were made in another order."""
    torch.testing.assert_close(found.losses, expected.losses, rtol=within, atol=within)
    for kind in ("parameters", "buffers"):
        torch.testing.assert_close(found.state[kind], expected.state[kind], rtol=within, atol=within)


def assert_trained(found: Learnt, job: Job) -> None:
    """All losses are there, all is finite, and every parameter has moved: where updates came at other moments."""
    first = job.graph.parameters
    expected = undisturbed(job)
    assert [len(losses) for losses in found.losses] == [len(losses) for losses in expected.losses]
    assert all(math.isfinite(loss) for losses in found.losses for loss in losses), found.losses
    for kind in ("parameters", "buffers"):
        assert found.state[kind].keys() == expected.state[kind].keys()
        assert all(tensor.isfinite().all() for tensor in found.state[kind].values()), kind
    stuck = [name for name, one in found.state["parameters"].items() if torch.equal(one, first[name])]
    assert not stuck, stuck


def differences(found: Any, expected: Any, path: str = "") -> Iterator[str]:
    """Where two states are not the same to the bit."""
    if isinstance(expected, dict):
        if found.keys() != expected.keys():
            yield f"{path}: {list(found)} in place of {list(expected)}"
            return
        for key in expected:
            yield from differences(found[key], expected[key], f"{path}.{key}")
    elif isinstance(expected, Tensor):
        if not torch.equal(found, expected):
            yield f"{path}: off by {float((found.double() - expected.double()).abs().max()):.3g}"
    elif found != expected:
        yield f"{path}: {found} in place of {expected}"


def _values(losses: Any) -> list[float]:
    return [float(loss) for loss in losses]


# --- nothing is left --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def nothing_left(session: rw.Session) -> Generator[None]:
    """Of what happens in the block no stage process stays, nor a descriptor here or in agents, as shared memory has."""
    before = _held()
    yield
    due = time.monotonic() + PATIENCE_S
    while (left := _beyond(_held(), before)) and time.monotonic() < due:
        time.sleep(0.01)
    assert not left, f"left behind: {left}"


def _held() -> dict[str, int]:
    """What processes of this one hold, in numbers."""
    found: dict[str, int] = {}
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            if (name := process.name()) in found or process.status() == psutil.STATUS_ZOMBIE:
                name = f"{name} {process.pid} {process.status()}"
            found[name] = process.num_fds()
    return found


def _beyond(now: dict[str, int], before: dict[str, int]) -> dict[str, str]:
    return {
        name: f"{number} in place of {before.get(name, 0)}"
        for name, number in now.items()
        if number > before.get(name, 0)
    }


def pids(trainer: Trainer) -> list[int]:
    """Of the processes, by worker; drains first."""
    return [one.pid for _, one in sorted(trainer._run.counters().items())]  # pyright: ignore


def nums_updates(trainer: Trainer) -> list[int]:
    """How many updates each stage of each worker has made since the workers were last made; drains first."""
    assert trainer._run is not None  # pyright: ignore[reportPrivateUsage]
    counters = trainer._run.counters().values()  # pyright: ignore[reportPrivateUsage]
    return [num for one in counters for num in one.num_updates.values()]


# --- what goes wrong by itself ----------------------------------------------------------------------------------------


@dataclass
class Once:
    """Does something at a call of a process, and only in one process of all."""

    folder: Path
    do: Callable[[], object]
    #: At which call, counted from 1 in each process.
    at: int = 6
    num_calls: int = 0
    #: Where the model is traced, nothing happens.
    made_by: int = field(default_factory=os.getpid)

    def __call__(self) -> None:
        self.num_calls += self.made_by != os.getpid()
        if self.num_calls >= self.at:
            with contextlib.suppress(FileExistsError):
                (self.folder / "has-happened").touch(exist_ok=False)
                self.do()


def go_wrong() -> None:
    """A mistake of the user."""
    raise ArithmeticError("seven is not even")


def use_all_memory() -> None:
    """As a layer that is too large does."""
    torch.empty(1 << 60, dtype=torch.uint8)


def hang() -> None:
    """For ever, although the process answers."""
    while True:
        time.sleep(0.05)


class InForward(nn.Module):
    """Goes wrong in forward."""

    def __init__(self, once: Callable[[], None]) -> None:
        super().__init__()
        self.once = once

    def forward(self, x: Tensor) -> Tensor:
        self.once()
        return x


class Meeting(nn.Module):
    """Computes only while the one in another process does: two can go on only if both compute at once."""

    def __init__(self, folder: Path, me: int, at_call: int) -> None:
        super().__init__()
        self.folder, self.me, self.at_call = folder, me, at_call
        self.num_calls, self.traced_by = 0, os.getpid()

    @classmethod
    def layers(cls, folder: Path, num_stages: int) -> nn.Sequential:
        """Two layers a stage: the first stage at its second micro-batch meets the second stage at its first."""
        made: list[nn.Module] = []
        for stage in range(num_stages):
            made.append(cls(folder, stage, 1 - stage) if stage < 2 else nn.Identity())
            made.append(nn.Linear(6 if stage else WIDTH, 6))
        return nn.Sequential(*made)

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.traced_by:
            if self.num_calls == self.at_call:
                self._meet()
            self.num_calls += 1
        return x

    def _meet(self) -> None:
        (self.folder / str(self.me)).touch()
        deadline = time.monotonic() + PATIENCE_S
        while not (self.folder / str(1 - self.me)).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"stage {1 - self.me} did not compute while stage {self.me} did")
            time.sleep(0.005)


class _Passing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, once: Callable[[], None]) -> Tensor:
        ctx.once = once
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None]:
        ctx.once()
        return gradients[0], None


class InBackward(InForward):
    """Goes wrong in backward."""

    def forward(self, x: Tensor) -> Tensor:
        return _Passing.apply(x, self.once) if x.requires_grad else x


class InLoss:
    """Goes wrong in the loss."""

    def __init__(self, once: Callable[[], None]) -> None:
        self.once = once

    def __call__(self, output: Tensor, labels: Tensor) -> Tensor:
        self.once()
        return functional.cross_entropy(output, labels)


class InStep(torch.optim.SGD):
    """Goes wrong in an update."""

    def __init__(self, parameters: Any, once: Callable[[], None]) -> None:
        super().__init__(parameters, 0.1)
        self.once = once

    def step(self, closure: Any = None) -> Any:
        self.once()
        return super().step(closure)
