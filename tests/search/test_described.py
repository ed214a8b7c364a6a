"""What decides in a search is described by all of its arguments, the same in each process."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from ropewalk.search.arguments import described, sampler_of
from ropewalk.search.schedulers import ASHA, MedianStopping, NoScheduler, make_scheduler


class Threshold(NoScheduler):
    def __init__(self, least: float, *, after: int = 5) -> None:
        self.least, self.after = least, after


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (ASHA(R=27), "ASHA(R=27, r=1, eta=4, s=0, max_brackets=1)"),
        (make_scheduler("asha", R=27, eta=3), "ASHA(R=27, r=1, eta=3, s=0, max_brackets=1)"),
        (MedianStopping(), "MedianStopping(grace=1, min_others=3)"),
        (NoScheduler(), "NoScheduler()"),
        (Threshold(0.3), "Threshold(least=0.3, after=5)"),
    ],
)
def test_a_scheduler_is_shown_as_the_call_that_makes_it(part: Any, words: str) -> None:
    assert repr(part) == repr(copy.deepcopy(part)) == repr(pickle.loads(pickle.dumps(part))) == words


def test_samplers_of_optuna_show_their_options() -> None:
    pytest.importorskip("optuna")
    from ropewalk.search.samplers.by_optuna import tpe

    assert described(sampler_of("tpe")) == "OptunaHistorySampler(make=TPESampler(constant_liar=True))"
    assert described(tpe(n_startup_trials=5)) != described(tpe(n_startup_trials=6))
    assert described(sampler_of(_seeded)) == "OptunaSampler(make=<function _seeded>)"


def _seeded(seed: int) -> Any:
    raise AssertionError
