"""Samples of workers are asked for while somebody looks, not too often, and without waiting for those that hang."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future

import pytest

from ropewalk.errors import ServiceLost
from ropewalk.exchange.exchange import ExchangeReport
from ropewalk.pipeline.plans import PlanWorker
from ropewalk.training import stage_samples
from ropewalk.training.recorder import Recorder
from ropewalk.training.stage_samples import StageSamples
from ropewalk.training.worker_sample import WorkerSample

FIRST, SECOND = PlanWorker(0, 0), PlanWorker(1, 0)
RECORD = Recorder(FIRST).take()


class Workers:
    """Answers for workers, or not."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[tuple[bool, bool]] = []
        self.answers: dict[PlanWorker, WorkerSample | Exception | None] = {FIRST: WorkerSample(FIRST)}
        self.hanging: dict[PlanWorker, Future[WorkerSample | None]] = {}

    def ask(
        self, but: Collection[PlanWorker], with_actions: bool, with_exchanges: bool
    ) -> Mapping[PlanWorker, Future[WorkerSample | None]]:
        self.asked.append((with_actions, with_exchanges))
        found: dict[PlanWorker, Future[WorkerSample | None]] = {}
        for worker, answer in self.answers.items():
            if worker in but:
                continue
            found[worker] = Future()
            if worker in self.hanging:
                self.hanging[worker] = found[worker]
            elif isinstance(answer, Exception):
                found[worker].set_exception(answer)
            else:
                found[worker].set_result(answer)
        return found

    def clock(self) -> float:
        return self.now


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    monkeypatch.setattr(stage_samples, "_PATIENCE_S", 0.0)
    return Workers()


def test_actions_and_exchanges_are_asked_for_less_often_than_the_rest(workers: Workers) -> None:
    samples = StageSamples(workers.ask, workers.clock)
    for tenth in range(60):
        workers.now = tenth / 10
        samples.look()
    assert len(workers.asked) == 12
    assert [actions for actions, _ in workers.asked].count(True) == 3
    assert [index for index, (_, exchanges) in enumerate(workers.asked) if exchanges] == [0, 10]


def test_actions_that_cost_much_are_asked_for_rarely(workers: Workers) -> None:
    samples = StageSamples(workers.ask, workers.clock)
    samples.look()
    samples.pay(0.05)
    for half in range(1, 40):
        workers.now = half / 2
        samples.look()
    assert [index / 2 for index, (actions, _) in enumerate(workers.asked) if actions] == [0.0, 10.0]


def test_actions_stay_until_there_are_newer_ones_of_the_same_deployment(workers: Workers) -> None:
    samples = StageSamples(workers.ask, workers.clock)
    workers.answers[FIRST] = WorkerSample(FIRST, step=1, record=RECORD, exchanges={0: ExchangeReport(steps=3)})
    samples.look()
    workers.now, workers.answers[FIRST] = 0.5, WorkerSample(FIRST, step=2)
    sample = samples.look()[FIRST].sample
    assert (sample.step, sample.record, sample.exchanges[0].steps) == (2, RECORD, 3)
    workers.now, workers.answers[FIRST] = 1.0, WorkerSample(FIRST, epoch=1)
    assert samples.look()[FIRST].sample.record is None


def test_a_worker_that_hangs_keeps_its_last_sample_and_the_others_go_on(workers: Workers) -> None:
    samples = StageSamples(workers.ask, workers.clock)
    workers.answers[SECOND] = WorkerSample(SECOND, step=1)
    samples.look()
    workers.hanging[SECOND] = Future()
    for half in range(1, 5):
        workers.now, workers.answers[FIRST] = half / 2, WorkerSample(FIRST, step=half)
        samples.look()
    found = samples.look()
    assert (found[FIRST].sample.step, found[FIRST].at_s) == (4, 2.0)
    assert (found[SECOND].sample.step, found[SECOND].at_s) == (1, 0.0)
    workers.hanging[SECOND].set_result(WorkerSample(SECOND, step=9))
    assert samples.look()[SECOND].sample.step == 9


def test_a_worker_that_is_gone_or_no_worker_just_now_keeps_its_last_sample(workers: Workers) -> None:
    samples = StageSamples(workers.ask, workers.clock)
    samples.look()
    for half, answer in enumerate((ServiceLost("gone"), None), 1):
        workers.now, workers.answers[FIRST] = half / 2, answer
        assert samples.look()[FIRST].at_s == 0.0


def test_a_trainer_that_ends_while_it_is_asked_shows_what_is_known() -> None:
    def ask(
        but: Collection[PlanWorker], with_actions: bool, with_exchanges: bool
    ) -> Mapping[PlanWorker, Future[WorkerSample | None]]:
        raise ServiceLost("its program has ended")

    assert StageSamples(ask).look() == {}
