"""Without a scheduler, every trial runs to its own end."""

from __future__ import annotations

from ropewalk.search.schedulers import NoScheduler
from ropewalk.testing.simulated_search import SimulatedState
from tests.search.schedulers.orders import recorded_search


def test_every_trial_takes_all_its_steps() -> None:
    scheduler = NoScheduler()
    assert not scheduler.needs_checkpoints
    search = recorded_search(scheduler, 1, 3, steps=range(1, 10), num_trials=7)
    assert [(trial.step, trial.state) for trial in search.trials] == [(9, SimulatedState.ENDED)] * 7
    assert search.num_taken == 63
