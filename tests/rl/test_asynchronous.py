from __future__ import annotations

import dataclasses
import pickle
import threading
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import ropewalk as rw
from ropewalk import rl
from ropewalk.errors import StreamLost
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.asynchronous import AsyncLearner, Delivery, Drawn
from ropewalk.rl.asynchronous import packed as packed_for_travel
from ropewalk.rl.blocks import EpisodeEnd
from ropewalk.rl.learner_rank import LearnerRank
from ropewalk.rl.learners.data_parallel import LearnerGroup
from ropewalk.rl.learners.on_policy import OnPolicyLearner
from tests.patience import wait_until
from tests.rl.agents import experience
from tests.rl.replay.stand_in import insertion

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


@pytest.mark.parametrize("num_bytes", [1000, 100_000])
def test_a_small_delivery_travels_as_its_pickle_and_a_large_one_without_a_copy(
    monkeypatch: pytest.MonkeyPatch, num_bytes: int
) -> None:
    monkeypatch.setattr(rw, "current_node", lambda: SimpleNamespace(generation=0, label="learner"))
    learner = AsyncLearner(Assembly(EXPERIMENT, 1), hold=True)
    block = insertion(0, tables=[EXPERIMENT.agent.table])
    block = dataclasses.replace(block, rows={"value": np.zeros((1, num_bytes), np.uint8)})
    delivery = Delivery(block, 0, (EpisodeEnd(0, 7.5, 5, True, {}),), {"env": 2.0})
    packed = packed_for_travel(delivery)
    assert isinstance(packed, bytes) if num_bytes == 1000 else packed is delivery
    assert learner.deliver(packed) is True
    assert list(learner.counters.recent) == [7.5] and learner.times.actors["env"] == 2.0
    assert learner._replay.info()[EXPERIMENT.agent.table].size == 1


def test_a_delivery_after_one_that_was_refused_ends_with_the_next_life_of_its_actor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its weights were newer than those of the block before it, which were lost; it waited until the program ended."""
    monkeypatch.setattr(rw, "current_node", lambda: SimpleNamespace(generation=1, label="learner"))
    learner = AsyncLearner(Assembly(EXPERIMENT, 1), hold=True)
    newest = learner.view.variables.version
    outcomes: list[object] = []

    def deliver(number: int, run_id: str, version: int) -> object:
        block = insertion(number, run_id=run_id, tables=[EXPERIMENT.agent.table])
        return learner.deliver(Delivery(dataclasses.replace(block, version=version), 0, (), {}))

    def deliver_later() -> None:
        try:
            outcomes.append(deliver(1, "0#0", newest))
        except StreamLost as lost:
            outcomes.append((lost.run_id, lost.expected, lost.sequence))

    later = threading.Thread(target=deliver_later, daemon=True)
    later.start()
    wait_until(lambda: bool(learner._replay._in_order), what="the later delivery")
    with pytest.raises(StreamLost, match="weights 0, which were lost when the learner died"):
        deliver(0, "0#0", 0)
    assert not outcomes
    assert deliver(0, "0#1", newest) is True
    later.join(60)
    assert outcomes == [("0#0", 0, 1)]


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


class _Peers:
    """The clients of two ranks, of which nothing is called."""

    def __getitem__(self, rank: int) -> SimpleNamespace:
        return SimpleNamespace(receive=None)


def rank_of_two(monkeypatch: pytest.MonkeyPatch, experiment: rl.Experiment) -> LearnerRank:
    """A rank whose reports all ranks have."""
    node = SimpleNamespace(generation=0, label="learner.0", name="learner", replica=0, replicas=2)
    monkeypatch.setattr(rw, "current_node", lambda: node)
    monkeypatch.setattr(rw, "stopping", lambda: False)
    monkeypatch.setattr(LearnerGroup, "tell", lambda self, report: [report, report])
    return LearnerRank(Assembly(experiment, 2), cast("Any", _Peers()), hold=True)


def test_a_rank_counts_a_block_that_is_too_old_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked for what is usable before the update, which was given all of the batch, and dropped the rest again."""
    rank = rank_of_two(monkeypatch, dataclasses.replace(EXPERIMENT, agent=rl.IMPALA(max_policy_lag=3)))
    batch = experience.random_batch(experience.DISCRETE, 0, blocks=3, versions=(0, 2, 5))
    monkeypatch.setattr(AsyncLearner, "draw", lambda self: Drawn(batch, 0.0))
    learner = cast("OnPolicyLearner", rank._learner)
    learner.version = 5
    drawn = rank.draw()
    assert drawn is not None and drawn.batch.info.version.tolist() == [2, 5]
    assert len(learner.usable(drawn.batch)) == 2 and learner.num_dropped == 1


def test_a_rank_that_goes_on_from_a_state_does_not_tell_the_scores_in_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program restores a service after it was made: the scores came a second time then, and made up the mean."""
    rank = rank_of_two(monkeypatch, EXPERIMENT)
    rank._arrived.add(10, [EpisodeEnd(0, 1.0, 5, terminated=True)])
    rank._tell(stopping=False)
    assert list(rank.counters.recent) == [1.0, 1.0], "one of each rank"
    other = rank_of_two(monkeypatch, EXPERIMENT)
    other.load_state_dict(pickle.loads(pickle.dumps(rank.state_dict())))
    other._tell(stopping=False)
    assert list(other.counters.recent) == [1.0, 1.0]
