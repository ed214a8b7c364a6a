"""Asks a sampler for a sequence of configurations."""

from __future__ import annotations

from typing import Any

from ropewalk.search.samplers import SAMPLERS
from ropewalk.search.samplers.sampler import Observed, Sampler
from ropewalk.search.space import SearchSpace


def asked(name: str, space: SearchSpace, trials: int, seed: int = 1, **options: Any) -> list[dict[str, Any]]:
    sampler: Sampler = SAMPLERS.make(name, options)
    sampler.begin(space, 1, seed)
    known: list[Observed] = []
    for number in range(trials):
        if (values := sampler.ask(number, known)) is None:
            break
        known.append(Observed(number, values, None, 0.0, is_under_way=True))
    return [dict(each.hyperparameters) for each in known]
