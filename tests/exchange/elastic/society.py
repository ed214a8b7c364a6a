"""A whole training in threads of the test: the real coordinator, members and trainers; calls between them are plain.

So deaths happen at exact places: in the loss of a step, at a member's n-th packet, before or after its vote, between
the commit and the optimizer's step.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor

from ropewalk.exchange.elastic.coordinator import Coordinator, ExchangeTimeouts
from ropewalk.exchange.elastic.elastic_member import ElasticConfig, ElasticMember
from ropewalk.exchange.elastic.worker import ElasticWorker
from ropewalk.exchange.groups.inbox import NOTE
from ropewalk.program import node_context
from tests.patience import PATIENCE_S

SAMPLES, BATCH, STEPS = 48, 12, 8
PATIENCE = ExchangeTimeouts(start_s=PATIENCE_S, quiet_s=5.0, silent_s=30.0, stalled_s=PATIENCE_S)

Place = Literal["loss", "packet", "vote", "voted", "commit"]


class Killed(BaseException):
    """This member is dead from here on."""


@dataclass(frozen=True)
class Death:
    """When a member dies: at the n-th time that it comes to a place."""

    replica: int
    place: Place
    number: int


@dataclass
class Data:
    """A regression in float64, which one process can do as well."""

    x: Tensor = field(default_factory=lambda: torch.randn(SAMPLES, 6, generator=_generator(1), dtype=torch.float64))
    y: Tensor = field(default_factory=lambda: torch.randn(SAMPLES, 2, generator=_generator(2), dtype=torch.float64))

    def loss(self, model: torch.nn.Module, indices: Tensor) -> Tensor:
        return torch.nn.functional.mse_loss(model(self.x[indices]), self.y[indices])


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_model(seed: int = 0) -> torch.nn.Sequential:
    """Two layers, so that there are several buckets; each seed gives other weights."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).double()
    generator = _generator(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def weights_of(model: torch.nn.Module) -> Tensor:
    return torch.cat([part.detach().reshape(-1) for part in model.parameters()])


class Society:
    """One training.

    Args:
        founders: how many begin.
        exchange: how gradients travel.
        deaths: who dies where.
        in_loss: called by each member in each loss, in the same way.
        on_step: called by each member after each step, with its replica number, its worker and its step.
        redo: as of `data_parallel`.
        steps: how many there are.
        absent: how many of the founders never come.
        train: what members do; by default the training that `models`, `losses` and `computed` tell of.
        timeouts: of all.
        servers: through which gradients travel; None: between members.
    """

    def __init__(
        self,
        founders: int,
        exchange: Any = "none",
        *,
        deaths: tuple[Death, ...] = (),
        on_step: Callable[[Society, ElasticWorker, int], None] = lambda society, worker, step: None,
        in_loss: Callable[[Society, ElasticWorker, int], None] = lambda society, worker, step: None,
        redo: str = "recompute",
        steps: int = STEPS,
        absent: int = 0,
        train: Callable[[Society, ElasticWorker], None] | None = None,
        timeouts: ExchangeTimeouts = PATIENCE,
        servers: Any = None,
    ) -> None:
        self.data = Data()
        self.deaths = deaths
        self.on_step = on_step
        self.in_loss = in_loss
        self.training = ElasticConfig(
            functools.partial(train, self) if train else self._train, exchange, servers, redo=redo, timeouts=timeouts
        )
        self.coordinator = Coordinator(cast(Any, _Clients(self, None)), founders, timeouts)
        self.lives: dict[int, _Life] = {}
        self.nodes: dict[int, _Node] = {}
        self.steps = steps
        self.scaled_to: int | None = None
        """As many workers as the program has now; there is no client of those beyond."""
        self.models: dict[str, torch.nn.Module] = {}
        """By name, of those who did all steps."""
        self.losses: dict[str, list[float]] = {}
        self.computed: list[tuple[str, int, int]] = []
        """Which member computed the loss of how many samples in which step, in the order in which that happened."""
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._started = threading.Lock()
        self.members: dict[int, ElasticMember] = {}
        self._run(self._coordinate)
        for replica in range(founders - absent):
            self.start(replica)

    def start(self, replica: int) -> None:
        """One more worker."""
        with self._started:
            if replica not in self.lives:
                self.lives[replica] = _Life()
                self._run(lambda: self._live(replica))

    def stop(self, replica: int) -> None:
        """The program asks a worker to stop."""
        self._run(lambda: self.nodes[replica].stop())

    def wait(self) -> Society:
        """Until all is over."""
        self.wait_until_over()
        for error in self.errors:
            raise error
        self.wait_for_ends()
        for error in self.errors:
            raise error
        return self

    def wait_until_over(self) -> None:
        """Until the coordinator has ended, and told all members that the training is over."""
        self._threads[0].join(PATIENCE_S)

    def wait_for_ends(self) -> None:
        """Until every member has ended, in whatever way."""
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"{thread.name} hangs"

    def at(self, replica: int, place: Place) -> None:
        """A member comes to a place, and perhaps dies there."""
        life = self.lives[replica]
        life.visits[place] = life.visits.get(place, 0) + 1
        if life.is_dead or Death(replica, place, life.visits[place]) in self.deaths:
            life.is_dead = True
            raise Killed(f"{replica} at {place}")

    def _run(self, body: Callable[[], object]) -> None:
        thread = threading.Thread(target=body, name=f"society {len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _coordinate(self) -> None:
        with _Node("coordinator", 0):
            try:
                self.coordinator.run()
            except BaseException as error:  # raised again by `wait`
                self.errors.append(error)

    def _live(self, replica: int) -> None:
        life = self.lives[replica]
        self.nodes[replica] = _Node("workers", replica)
        with self.nodes[replica]:
            coordinator = cast(Any, _Coordinator(self, replica))
            member = ElasticMember(self.training, coordinator, cast(Any, _Clients(self, replica)))
            self.members[replica] = member
            try:
                member.run()
                life.end.set_result(None)
            except Killed as error:
                life.end.set_exception(RuntimeError(str(error)))
            except BaseException as error:  # raised again by `wait`
                self.errors.append(error)
                life.end.set_exception(error)

    def _train(self, worker: ElasticWorker) -> None:
        replica = int(worker.name.partition(".")[2].partition("#")[0])
        model = make_model(seed=replica)
        trainer = worker.trainer(model, make_optimizer(model))
        finish = trainer.exchange.finish

        def finish_or_die() -> Any:
            self.at(replica, "commit")
            return finish()

        trainer.exchange.finish = finish_or_die  # type: ignore[method-assign]
        losses = self.losses.setdefault(worker.name, [])

        def loss_of(indices: Tensor) -> Tensor:
            self.at(replica, "loss")
            self.in_loss(self, worker, trainer.num_steps)
            self.computed.append((worker.name, trainer.num_steps, len(indices)))
            return self.data.loss(model, indices)

        for batch in worker.batches(SAMPLES, BATCH, epochs=self.steps * BATCH // SAMPLES, seed=5):
            losses.append(trainer.step(batch, loss_of))
            self.on_step(self, worker, trainer.num_steps)
        if not trainer.left:
            self.models[worker.name] = model


@dataclass
class _Life:
    is_dead: bool = False
    end: Future[None] = field(default_factory=Future[None])
    visits: dict[str, int] = field(default_factory=dict[str, int])


class _Node:
    """What `current_node` gives in a thread of the society."""

    generation = 0
    stopping = False
    thread = 0
    stop: Callable[[], object]

    def __init__(self, name: str, replica: int) -> None:
        self.name = name
        self.replica = replica

    def on_stop(self, callback: Callable[[], object]) -> None:
        """As in a program, where it is called when the node is asked to stop: by `Society.stop`."""
        self.stop = callback

    def wait_for_stop(self, timeout_s: float | None = None) -> bool:
        """Whoever has failed has nothing to wait for."""
        return True

    def __enter__(self) -> None:
        node_context.enter(cast(Any, self))

    def __exit__(self, *exc: object) -> None:
        node_context.leave(cast(Any, self))


class _Coordinator:
    """A member's client of the coordinator."""

    def __init__(self, society: Society, replica: int) -> None:
        self._society = society
        self._replica = replica

    def __getattr__(self, name: str) -> Any:
        return getattr(self._society.coordinator, name)

    def vote(self, *args: Any) -> None:
        self._society.at(self._replica, "vote")
        self._society.coordinator.vote(*args)
        self._society.at(self._replica, "voted")


class _Clients:
    """The client of all workers, as `owner` has it; None is the coordinator."""

    def __init__(self, society: Society, owner: int | None) -> None:
        self._society = society
        self._owner = owner

    def __getitem__(self, replica: int) -> _Client:
        if self._society.scaled_to is not None and replica >= self._society.scaled_to:
            raise IndexError(f"workers has {self._society.scaled_to} replicas; there is no number {replica}")
        return _Client(self._society, self._owner, replica)


class _Client:
    def __init__(self, society: Society, owner: int | None, replica: int) -> None:
        self._society = society
        self._owner = owner
        self._replica = replica

    def __getattr__(self, name: str) -> Any:
        return _Method(lambda *args: self._call(name, *args))

    def _call(self, name: str, *args: Any) -> Future[Any]:
        life = self._society.lives[self._replica]
        if name == "stay":
            return life.end
        if self._owner is not None and name == "deliver" and args[0].number != NOTE:  # these come when they come
            self._society.at(self._owner, "packet")
        answer: Future[Any] = Future()
        if not life.is_dead:
            returned = getattr(self._society.members[self._replica], name)(*args)
            if isinstance(returned, Future):  # of a test, in which the call takes its time
                return returned
            answer.set_result(returned)
        return answer


@dataclass
class _Method:
    future: Callable[..., Future[Any]]
