from __future__ import annotations

from typing import Any

import numpy as np

from ropewalk.rl.learner_updates import LearnerUpdates, digest_of
from ropewalk.rl.learners.learner import Learner, Update
from ropewalk.rl.replay.batch import Batch
from tests.rl.agents.batches import transitions


class Counting(Learner):
    """Its only weight is the number of updates; each item of a batch gets that number as its priority."""

    def __init__(self, prioritizes: bool) -> None:
        self.prioritizes, self.weight, self.progresses = prioritizes, 0, list[float]()

    def update(self, batch: Batch, progress: float) -> Update:
        self.weight += 1
        self.progresses.append(progress)
        priorities = np.full(len(batch), float(self.weight)) if self.prioritizes else None
        return Update({"loss": float(self.weight)}, priorities)

    def variables(self) -> dict[str, Any]:
        return {"weight": np.array(self.weight)}

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def load_state_dict(self, state: Any) -> None:
        self.weight = state["weight"]


def test_an_update_is_counted_shown_digested_and_its_priorities_are_written_back() -> None:
    written: list[tuple[list[int], list[float]]] = []
    updates = LearnerUpdates(Counting(True), lambda keys, new: written.append((keys.tolist(), new.tolist())), 2)
    batch = transitions(0)
    for _ in range(5):
        updates.update(batch, 0.5, version=7)
    keys = batch.info.keys.tolist()
    assert written == [(keys, [float(number)] * len(keys)) for number in range(1, 6)]
    lags = 7 - batch.info.version
    of_batch = {"policy_lag": lags.mean(), "policy_lag_min": lags.min(), "policy_lag_max": lags.max()}
    assert updates.metrics == {"loss": 5.0, **of_batch}
    assert updates.counters.updates == 5 and updates.learner.version == 7
    assert updates.digests == [digest_of({"weight": np.array(number)}) for number in (2, 4)]


def test_updates_go_on_from_a_state_and_leave_priorities_that_an_agent_does_not_have() -> None:
    def fail(keys: Any, priorities: Any) -> None:
        raise AssertionError("there are no priorities")

    first, second = LearnerUpdates(Counting(False), fail, 3), LearnerUpdates(Counting(False), fail, 3)
    batch = transitions(0)
    for _ in range(4):
        first.update(batch, 0.0, 0)
    state = first.state_dict()
    second.load_state_dict(state)
    for _ in range(2):
        first.update(batch, 0.0, 0)
        second.update(batch, 0.0, 0)
    assert second.counters == first.counters and second.digests == first.digests and len(first.digests) == 2
    assert len(state["digests"]) == 1, "a state does not change any more"
