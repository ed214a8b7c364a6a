"""Models learn on real processes what they learn on one, under every schedule: accuracy and loss, not bits.

Three schedules of digits run always: two that update after a flush, and the one whose weights lag behind most. With
`make soak` so do the others, on two workers and on four, and the language model, whose proof needs several seeds:
between two seeds its losses differ by as much as they may differ here between two schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

import pytest
import torch
from torch.nn import functional

import ropewalk as rw
from ropewalk.pipeline.plans import Plan
from ropewalk.pipeline.schedules import SCHEDULES, make_schedule
from ropewalk.pipeline.stages.optimizer_maker import OptimizerMaker
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.training.trainer_options import ProcessOptions
from tests.pipeline.played_plans import even_cut, plan_of
from tests.training import corpus, digits

pytestmark = pytest.mark.usefixtures("one_thread")

ALWAYS = ("gpipe", "one_f_one_b", "pipedream")
#: Of the language model, in which 16 samples are as many micro-batches as there are stages.
SEEDS, STAGES = (0, 1, 2), 2


@pytest.fixture
def digits_graph() -> ModelGraph:
    torch.manual_seed(0)
    return trace(digits.DigitsNet(), (digits.load().train_x[: digits.SIZE // digits.MICRO_BATCHES],))


def plan_on(workers: int, graph: ModelGraph, name: str, micro_batches: int) -> Plan:
    """As many operators in each stage, and as many stages on each worker as the schedule wants."""
    schedule = make_schedule(name)
    groups = [schedule.group_of(stage, workers) for stage in range(workers * schedule.stages_per_worker)]
    return plan_of(graph, even_cut(graph, len(groups)), schedule=name, micro_batches=micro_batches, devices=groups)


def updates_in_a_step(name: str, micro_batches: int) -> int:
    return micro_batches if name == "pipedream" else 1


def accuracies(names: Sequence[str], workers: int, graph: ModelGraph) -> dict[str, tuple[float, float]]:
    """Under each schedule the share of right answers, by a copy of what was learnt and by the stages themselves."""
    data, micro_batches = digits.load(), 2 * workers  # "zb_h2" needs 2 p - 1
    found: dict[str, tuple[float, float]] = {}
    with rw.Session() as session:
        for name in names:
            num_updates = digits.NUM_STEPS * updates_in_a_step(name, micro_batches)
            with rw.Trainer(
                graph,
                functional.cross_entropy,
                OptimizerMaker(digits.adam, digits.OneCycle(num_updates)),
                plan_on(workers, graph, name, micro_batches),
                processes=ProcessOptions(session=session),
            ) as trainer:
                for x, y in digits.batches(data):
                    trainer.step(x, y)
                said = trainer.predict(data.test_x).argmax(1)
                right = float((said == data.test_y).float().mean())
                found[name] = digits.accuracy(trainer.to_module(), data), right
    return found


@pytest.mark.soak
def test_the_digits_are_learnt_on_two_processes(digits_graph: ModelGraph) -> None:
    found = accuracies(ALWAYS, 2, digits_graph)
    assert {name: shares for name, shares in found.items() if min(shares) < 0.97} == {}


@pytest.mark.soak
@pytest.mark.parametrize("workers", [2, 4])
def test_the_digits_are_learnt_under_every_schedule(digits_graph: ModelGraph, workers: int) -> None:
    found = accuracies(list(SCHEDULES), workers, digits_graph)
    assert {name: shares for name, shares in found.items() if min(shares) < 0.97} == {}


@pytest.mark.soak
def test_a_language_model_learns_as_much_from_weights_that_lag_behind() -> None:
    text = corpus.load()

    def loss_after(name: str, seed: int, session: rw.Session) -> float:
        torch.manual_seed(seed)
        model = corpus.GPT(len(text.characters))
        graph = trace(model, (torch.zeros(corpus.SIZE // STAGES, corpus.NUM_POSITIONS, dtype=torch.long),))
        num_updates = corpus.NUM_STEPS * updates_in_a_step(name, STAGES)
        with rw.Trainer(
            graph,
            corpus.next_character,
            OptimizerMaker(corpus.adamw, digits.OneCycle(num_updates)),
            plan_on(STAGES, graph, name, STAGES),
            processes=ProcessOptions(session=session),
            seed=seed,
        ) as trainer:
            for x, y in corpus.batches(text.train, seed=seed):
                trainer.step(x, y)
            return corpus.held_out_loss(trainer.to_module(), text)

    with rw.Session() as session:
        synchronous = mean(loss_after("one_f_one_b", seed, session) for seed in SEEDS)
        lagging = mean(loss_after("pipedream", seed, session) for seed in SEEDS)
    assert abs(lagging / synchronous - 1) <= 0.02, f"{lagging:.4f} against {synchronous:.4f}"
    assert synchronous < 3.0, "it has learnt: letters alone, by how frequent they are, leave 3.3"
