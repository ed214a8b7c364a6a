"""`data_parallel`: a training function as a program whose workers may die, leave and join.

coordinator ◀── vote, join, leave ── workers.0 … workers.N-1 ◀── packets ──▶ each other
            ── view, commit ──▶

def train(worker):
    model = make_model()
    trainer = worker.trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for batch in worker.batches(len(x), batch_size=256, epochs=10):
        trainer.step(batch, lambda indices: loss_fn(model(x[indices]), y[indices]))

with data_parallel(train, workers=4).launch() as running:
    running.scale("workers", 6)
    running.wait()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from ropewalk.argument_kinds import check_number
from ropewalk.engines.resources import Resources
from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.elastic.coordinator import WORKERS, Coordinator, ExchangeTimeouts
from ropewalk.exchange.elastic.elastic_member import ElasticConfig, ElasticMember
from ropewalk.exchange.exchange_maker import check_setting
from ropewalk.exchange.groups.link_emulation import LinkEmulation
from ropewalk.exchange.parameter_server.service import ParameterShard
from ropewalk.near_names import check_choice
from ropewalk.program.nodes.service import Service
from ropewalk.program.program import Program
from ropewalk.program.restart_rule import Restart, restart_rule

Redo = Literal["recompute", "keep"]

PRELOADED = ("torch", "torch._dynamo", "ropewalk.exchange.elastic.elastic_member")
"""Imported in the fork server of all nodes: torch alone takes each process two seconds, and a restarted one as well.
Torch imports dynamo when it makes the first optimizer: a second more of each."""


def data_parallel(
    train_fn: Callable[..., object],
    workers: int = 4,
    exchange: Any = "none",
    *,
    servers: int = 0,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    name: str = "data-parallel",
    program: Program | None = None,
    resources: Resources | None = None,
    environment: Mapping[str, str] | None = None,
    restart: str | Restart | None = "on_failure",
    redo: Redo = "recompute",
    seed: int = 0,
    timeouts: ExchangeTimeouts | None = None,
    shaping: LinkEmulation | None = None,
) -> Program:
    """Make a program that trains one model on several workers, and continues when some of them die.

    A step counts for all members or for none. When a worker dies the others process its samples, within a second; it is
    restarted and joins with the current weights. `running.scale("workers", n)` changes the number of workers: a worker
    that is to leave finishes its step and hands over its residuals. An exception of `train_fn` ends the program.

    Gradients are averaged, buffers (such as running means) are not: each worker has its own, and a joining worker
    begins with those of rank 0.

    Args:
        train_fn: called in each worker as `train_fn(worker, *args, **kwargs)` with an `ElasticWorker`. A worker that
            joins later calls it from the beginning.
        workers: number of workers at the start.
        exchange: how gradients travel: a compressor, its name, or a function that makes an exchange, such as
            `functools.partial(AllReduce, "half", bucket_bytes=1 << 20)`.
        servers: number of nodes that hold a part of the model each; gradients travel through them, as with a
            `ParameterServer`. The exchange is then a compressor, or a function that makes a `ParameterServer`.
        args: further arguments of `train_fn`; handles to nodes of `program` arrive as clients.
        kwargs: further keyword arguments of `train_fn`.
        name: name of the program, if `program` is None.
        program: the program that gets the nodes "coordinator", "workers" and, if there are any, "servers".
        resources: resources that each worker requests.
        environment: environment variables of workers, such as OMP_NUM_THREADS.
        restart: restart policy of workers; with "never" workers that die are dropped, and training continues without
            them.
        redo: when a step is done again, "recompute" all gradients, which overlaps with sending them, or "keep" the
            computed gradients and add the dead worker's share: less time lost in a death, but a copy of all gradients
            is held, and nothing overlaps.
        seed: seed of random numbers in losses.
        timeouts: how long the coordinator and workers wait.
        shaping: makes links slower than they are, for experiments.

    Returns:
        The program; `launch` it.

    Raises:
        ExchangeInvalid: `workers` is below 1, `servers` below 0, or `exchange` or `redo` is invalid.
        TypeError: `workers` or `servers` is no whole number.
    """
    _check(workers, servers, exchange, redo)
    program = program or Program(name)
    rule = restart_rule(restart)
    timeouts = timeouts or ExchangeTimeouts()
    shards: Any = None  # a handle here, and a client in the worker
    if servers:
        shards = program.add(
            Service(ParameterShard), name="servers", replicas=servers, restart="on_failure", preload=PRELOADED
        )
    training = ElasticConfig(train_fn, exchange, shards, tuple(args), dict(kwargs or {}), redo, seed, timeouts, shaping)
    peers = program.declare(WORKERS)
    restarts = rule.policy != "never"
    coordinator = program.add(
        Service(Coordinator, peers, workers, timeouts, restarts=restarts), name="coordinator", preload=PRELOADED
    )
    program.add(
        Service(ElasticMember, training, coordinator, peers),
        name=WORKERS,
        replicas=workers,
        preload=PRELOADED,
        resources=resources,
        environment=environment,
        restart=rule,
        essential=restarts,
    )
    return program


def _check(workers: int, servers: int, exchange: Any, redo: Redo) -> None:
    check_number("workers", workers, int, "a number of workers", least=1, required=True, error=ExchangeInvalid)
    check_number("servers", servers, int, "a number of servers", least=0, required=True, error=ExchangeInvalid)
    check_setting(exchange, "worker")
    check_choice("redo", redo, get_args(Redo), ExchangeInvalid)
