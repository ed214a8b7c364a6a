"""Samplers that go through a fixed sequence of configurations, in which trials that exist are left out."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ropewalk.search.samplers.sampler import Observed, Sampler
from ropewalk.search.space import SearchSpace


class SequenceSampler(Sampler):
    """Offers the configurations of a sequence that satisfy the constraints.

    What was asked for before a resume, or given by a person, is found in the sequence by its values and left out as
    often as there are such trials.
    """

    def begin(self, space: SearchSpace, objectives: int, seed: int) -> None:
        self._space = space
        self._sequence = self.configurations(space, seed)
        self._existing: Counter[str] | None = None

    @abstractmethod
    def configurations(self, space: SearchSpace, seed: int) -> Iterator[dict[str, Any]]:
        """Return the sequence, without regard to the constraints.

        Raises:
            SearchInvalid: there is no such sequence for this space.
        """

    def ask(self, number: int, trials: Sequence[Observed]) -> dict[str, Any] | None:
        if self._existing is None:
            self._existing = Counter(_key(self._known(trial)) for trial in trials)
        for values in self._sequence:
            if not self._space.admits(values):
                continue
            if self._existing[_key(values)] == 0:
                return values
            self._existing[_key(values)] -= 1
        return None

    def _known(self, trial: Observed) -> dict[str, Any]:
        """Return the values of a trial without those that it asked for by name."""
        return {name: value for name, value in trial.hyperparameters.items() if name in self._space.parameters}


def _key(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)
