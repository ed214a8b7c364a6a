"""Replicas of a stage that average by an exchange of `ropewalk.exchange`, on processes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import ropewalk as rw
from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange import GDSEC, AllGather, AllReduce, Exchange, ParameterServer
from ropewalk.exchange.exchange_maker import made_exchange
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.quantities import shown_size
from ropewalk.training.replica_groups import check_exchange
from ropewalk.training.trainer_options import ProcessOptions, Snapshots
from tests.pipeline.played_plans import plan_of

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 12


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, 4))


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(STEPS, 16, 10, generator=generator)
    return [(one, one[:, :4].argmax(1)) for one in x]


def test_replicas_average_by_an_exchange_as_in_one_thread(trainings: rw.Session) -> None:
    _compare(trainings, functools.partial(AllReduce, "none"), "one_f_one_b", 1e-6)
    _compare(trainings, functools.partial(AllGather, GDSEC(c=5.0, beta=0.01), mode="sparse"), "pipedream", 0.0)


def _compare(session: rw.Session, make: Callable[[], Exchange], schedule: str, nearness: float) -> None:
    graph = trace(network(), (torch.randn(4, 10),))
    ids = [one.id for one in graph.operators]
    plan = plan_of(graph, [ids[:3], ids[3:]], schedule=schedule, micro_batches=4, replicas=2)

    def trainer(*, inline: bool) -> rw.Trainer:
        return rw.Trainer(
            graph,
            functional.cross_entropy,
            lambda parameters: torch.optim.SGD(parameters, 0.2),
            plan,
            exchange=make,
            inline=inline,
            processes=ProcessOptions(session=None if inline else session, snapshots=Snapshots(every=2)),
        )

    with trainer(inline=True) as alone, trainer(inline=False) as spread:
        for x, y in batches():
            alone.step(x, y)
            spread.step(x, y)
        wanted, found = alone.state_dict()["parameters"], spread.state_dict()["parameters"]
        start = dict(graph.model.named_parameters())
        errors = {name: float((found[name] - one).detach().abs().max()) for name, one in wanted.items()}
        assert {name: error for name, error in errors.items() if error > nearness} == {}
        assert all(not torch.allclose(one, start[name], atol=1e-3) for name, one in wanted.items()), "it has learnt"
        report = spread.report()
        exchanges = [worker.exchange for worker in report.workers if worker.exchange is not None]
        assert len(exchanges) == len(report.workers)
        # Two figures that differed looked like two of one exchange: that of the link is what goes besides it.
        beside = [link for link in report.links if link.source[0] == link.target[0]]
        assert beside and all(link.predicted_step_bytes is None for link in beside)
        assert str(report).count("besides the exchange") == len(report.links)
        for worker, one in zip(report.workers, exchanges, strict=True):
            said = f"worker {worker.worker}: {shown_size(one.sent_bytes / STEPS)} sent in a step"
            assert said in str(report), "in a step of the training, as for links, and not in an update"


def test_what_cannot_average_replicas_is_refused_by_name() -> None:
    def trainer(exchange: object) -> rw.Trainer:
        return rw.Trainer(network(), nn.CrossEntropyLoss(), torch.optim.SGD, 1, exchange=exchange)  # type: ignore[arg-type]

    with pytest.raises(ExchangeInvalid, match="a parameter server does not go with them; use AllReduce or AllGather"):
        trainer(functools.partial(ParameterServer, None))
    with pytest.raises(ExchangeInvalid, match=r"give a function that does, such as functools.partial\(All"):
        trainer(AllReduce())
    with pytest.raises(ExchangeInvalid, match="gd_sec"):
        trainer("gd_sek")


@pytest.mark.parametrize(("exchange", "is_told"), [("gd_sec", True), ("half", False), (None, False)])
def test_what_a_compressor_kept_back_is_told_not_to_be_in_a_checkpoint(
    exchange: Any, is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = trace(network(), (torch.randn(4, 10),))
    plan = plan_of(graph, [[one.id for one in graph.operators]], micro_batches=2, replicas=2)
    for _ in range(2):
        loss, optimizer = functional.cross_entropy, lambda parameters: torch.optim.SGD(parameters, 0.2)
        with rw.Trainer(graph, loss, optimizer, plan, exchange=exchange, inline=True) as trainer:
            trainer.step(*batches()[0])
            if any(tmp_path.iterdir()):
                trainer.load(tmp_path)
                said = [event for event in trainer.events if event.startswith("the exchange between replicas starts")]
                assert len(said) == int(is_told)
            trainer.save(tmp_path).wait()
    assert ("has nothing of what its compressor had kept back" in caplog.text) is is_told


@pytest.mark.parametrize(("exchange", "is_told"), [("gd_sec", True), ("half", False)])
def test_what_a_compressor_kept_back_is_told_to_be_dropped_by_a_resize(
    exchange: str, is_told: bool, trainings: rw.Session
) -> None:
    graph = trace(network(), (torch.randn(4, 10),))
    plan = plan_of(graph, [[one.id for one in graph.operators]], micro_batches=2, replicas=2)
    loss, optimizer = functional.cross_entropy, lambda parameters: torch.optim.SGD(parameters, 0.2)
    processes = ProcessOptions(session=trainings)
    with rw.Trainer(graph, loss, optimizer, plan, exchange=exchange, processes=processes) as trainer:
        trainer.step(*batches()[0])
        trainer.resize(0, 1)
        assert any("`resize` drops what its compressor had kept back" in event for event in trainer.events) is is_told
        num_told = len(trainer.events)
        trainer.resize(0, 2)
        assert len(trainer.events) == num_told, "one replica exchanges nothing, so nothing was dropped"


@pytest.mark.parametrize("setting", [3, object()])
def test_what_makes_no_exchange_is_refused_before_anything_starts(setting: Any) -> None:
    with pytest.raises(ExchangeInvalid, match="a compressor such as GDSEC"):
        check_exchange(setting)


def test_a_compressor_is_taken_like_its_name() -> None:
    check_exchange(GDSEC(c=10))
    assert isinstance(made_exchange(GDSEC(c=10)), AllGather)
    assert isinstance(made_exchange(lambda: GDSEC(c=10)), AllGather)
