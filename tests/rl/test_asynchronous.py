from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

import ropewalk as rw
from ropewalk import rl
from ropewalk.errors import StreamLost
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.asynchronous import AsyncLearner, Delivery
from ropewalk.rl.blocks import EpisodeEnd
from tests.rl.replay.stand_in import insertion
from tests.scenarios.tasks import wait_until

EXPERIMENT = rl.Experiment(rl.IMPALA(unroll=8, envs=1, batch_size=2), rl.Gymnasium("CartPole-v1"), rl.MLP((4,)))


def test_a_delivery_that_fails_beside_its_repetition_takes_no_scores_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rw, "current_node", lambda: SimpleNamespace(generation=0, label="learner"))
    learner = AsyncLearner(Assembly(EXPERIMENT, 1), hold=True)

    def delivery(number: int, acknowledged: int) -> Delivery:
        ends = (EpisodeEnd(0, 10.0 + number, 5, True, {}),)
        return Delivery(insertion(number, tables=[EXPERIMENT.agent.table]), acknowledged, ends, {})

    first = threading.Thread(target=learner.deliver, args=(delivery(1, 0),))
    first.start()  # it waits for block 0
    wait_until(lambda: bool(learner._episodes), what="the first delivery")
    with pytest.raises(StreamLost):
        learner.deliver(delivery(1, 1))
    learner.deliver(delivery(0, 0))
    first.join(60)
    assert list(learner.counters.recent) == [10.0, 11.0] and learner.counters.episodes == 2
    assert not learner._episodes


def test_the_answer_to_a_block_brings_weights_that_are_newer_than_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rw, "current_node", lambda: SimpleNamespace(generation=0, label="learner"))
    learner = AsyncLearner(Assembly(EXPERIMENT, 1), hold=True)
    newest = learner.view.variables

    def deliver(number: int, have: int | None) -> Any:
        return learner.deliver(Delivery(insertion(number, tables=[EXPERIMENT.agent.table]), number, (), {}), have)

    answer = deliver(0, newest.version - 1)
    assert isinstance(answer, rw.Frozen) and answer.value is newest
    for number, have in enumerate([newest.version, newest.version + 1, None], 1):
        learner._replay.sample(EXPERIMENT.agent.table, 1)  # makes room
        assert deliver(number, have) is True
    learner._finished = True
    assert deliver(4, -1) is False
