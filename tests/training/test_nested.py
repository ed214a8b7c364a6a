"""A trainer works wherever code runs: in a task of a pool, a node of a program, and while programs are threads."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import ropewalk as rw
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.training import stage_fleet
from ropewalk.training.trainer_options import ProcessOptions
from tests.pipeline.played_plans import even_cut, plan_of

pytestmark = pytest.mark.usefixtures("one_thread")


def learnt(inline: bool, session: rw.Session | None = None) -> float:
    """A number that tells what was learnt, with random numbers drawn in both stages."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.3)) for _ in range(4)]
    graph = trace(nn.Sequential(*layers, nn.Linear(16, 4)), (torch.zeros(8, 16),))
    generator = torch.Generator().manual_seed(1)
    with rw.Trainer(
        graph,
        functional.cross_entropy,
        lambda parameters: torch.optim.SGD(parameters, 0.1),
        plan_of(graph, even_cut(graph, 2)),
        inline=inline,
        processes=ProcessOptions(session=session),
    ) as trainer:
        for _ in range(30):
            x = torch.randn(32, 16, generator=generator)
            trainer.step(x, x[:, :4].argmax(1))
        return float(sum(one.double().abs().sum() for one in trainer.state_dict()["parameters"].values()))


def learnt_warmly(preloaded: tuple[str, ...]) -> float:
    """The same in stages that are forked from what this process was forked from, instead of importing torch anew."""
    stage_fleet.PRELOADED = preloaded  # as the tests have it; this process was not told
    return learnt(inline=False)


def test_a_task_of_a_pool_trains_in_a_pipeline(trainings: rw.Session) -> None:
    with rw.Pool(1, session=trainings, preload=stage_fleet.PRELOADED) as pool:
        assert pool.map(learnt_warmly, [stage_fleet.PRELOADED]) == [learnt(inline=True)]


class Pupil:
    """A node that trains."""

    def learn(self, preloaded: tuple[str, ...]) -> float:
        return learnt_warmly(preloaded)


def test_a_node_of_a_program_trains_in_a_pipeline(trainings: rw.Session) -> None:
    program = rw.Program("school")
    program.add(rw.Service(Pupil), name="pupil", preload=stage_fleet.PRELOADED)
    with program.launch(session=trainings) as running:
        assert running.client("pupil").learn(stage_fleet.PRELOADED) == learnt(inline=True)


def test_stages_are_processes_while_programs_are_threads(
    trainings: rw.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads would draw from one generator, and dropout would drop other values in each run."""
    monkeypatch.setenv("ROPEWALK_MODE", "threads")
    assert learnt(inline=False, session=trainings) == learnt(inline=True)
