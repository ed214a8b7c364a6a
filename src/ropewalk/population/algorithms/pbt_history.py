"""What happened in a population based training: the intervals as a tree, the mutations, the schedule of a member.

member 0   ●──●──●──●╌╌╌╌╌╌╌╌╌╌╌╌╌ copied 1 here: its first four intervals are a dead branch
member 1   ●──●──●──●──●──●──●
                       └──●──●     member 0, with other hyperparameters: a schedule is a way from a leaf to the root
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from ropewalk.pool.seeds import derive
from ropewalk.population.algorithms.pbt_member import Interval


@dataclass(frozen=True, slots=True)
class TrainedInterval:
    """An interval that was trained, with success."""

    member: int
    number: int
    """Which of the member's intervals it was."""
    steps: int
    """Before it."""
    length: int
    """Steps that it was to train."""
    trained: int
    """Steps that it did train."""
    score: float
    seed: int
    """Of its trial."""
    hyperparameters: dict[str, Any]

    @property
    def end(self) -> int:
        """Steps after it."""
        return self.steps + self.trained


@dataclass(frozen=True, slots=True)
class Mutation:
    """A member's state and hyperparameters were replaced."""

    reason: str
    """"exploit"; or "lost" or "restart": its state was lost with its host."""
    member: int
    number: int
    """Of its next interval."""
    steps: int
    """That its state was trained for, which is gone."""
    score: float | None
    donor: int
    """The member that was copied; -1 for none."""
    donor_steps: int
    donor_score: float | None
    before: dict[str, Any]
    after: dict[str, Any]
    why: str = ""

    def __str__(self) -> str:
        source = f"copies member {self.donor} ({self.donor_score}, {self.donor_steps} steps)"
        does = source if self.donor >= 0 else "starts anew"
        return f"{self.reason}: member {self.member} ({self.score}, {self.steps} steps) {does} and trains {self.after}"


@dataclass(frozen=True, slots=True)
class PBTSchedule:
    """How a state came to be: what was trained with which hyperparameters, in order."""

    stretches: tuple[TrainedInterval, ...]

    def __len__(self) -> int:
        return len(self.stretches)

    def __iter__(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """(first step, step after the last, hyperparameters), for each time that they changed."""
        begin = 0
        for at, stretch in enumerate(self.stretches):
            following = self.stretches[at + 1] if at + 1 < len(self.stretches) else None
            if following is None or following.hyperparameters != stretch.hyperparameters:
                yield begin, stretch.end, stretch.hyperparameters
                begin = stretch.end

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        Path(path).write_text(json.dumps([asdict(stretch) for stretch in self.stretches], indent=1) + "\n")

    @staticmethod
    def load(path: str | Path) -> PBTSchedule:
        """Read what `save` has written.

        Raises:
            ValueError: it is no such file.
            OSError: it cannot be read.
        """
        try:
            return PBTSchedule(tuple(TrainedInterval(**each) for each in json.loads(Path(path).read_text())))
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} holds no schedule: {error}; PBTSchedule.save writes one") from error


_COUNTS = ("member", "number", "steps", "length", "trained", "parent", "setting")


class History:
    """All intervals that were trained and all mutations of a run.

    Args:
        seed: of the algorithm.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._counts: list[tuple[int, ...]] = []
        self._scores: list[float] = []
        self._settings: list[dict[str, Any]] = []
        self._setting_of: dict[str, int] = {}
        self.mutations: list[Mutation] = []

    def __len__(self) -> int:
        return len(self._scores)

    def add(self, interval: Interval, trained: int, score: float, parent: int) -> int:
        """Note an interval.

        Args:
            interval: as it was asked.
            trained: steps that it did train.
            score: after it.
            parent: the place in the history of the interval whose state it began with; -1 for none.

        Returns:
            Its place in the history.
        """
        key = json.dumps(interval.hyperparameters)
        setting = self._setting_of.setdefault(key, len(self._settings))
        if setting == len(self._settings):
            self._settings.append(interval.hyperparameters)
        self._counts.append(
            (interval.member, interval.number, interval.steps, interval.length, trained, parent, setting)
        )
        self._scores.append(score)
        return len(self._scores) - 1

    def stretch(self, place: int) -> TrainedInterval:
        """The interval at a place in the history."""
        member, number, steps, length, trained, _, setting = self._counts[place]
        seed, settings = derive(derive(self._seed, member), number), dict(self._settings[setting])
        return TrainedInterval(member, number, steps, length, trained, self._scores[place], seed, settings)

    def schedule(self, place: int) -> PBTSchedule:
        """How the state after an interval came to be; an empty one for -1."""
        stretches: list[TrainedInterval] = []
        while place >= 0:
            stretches.append(self.stretch(place))
            place = self.parent(place)
        return PBTSchedule(tuple(reversed(stretches)))

    def parent(self, place: int) -> int:
        """The place of the interval before, of this member or of one that it copied; -1 for none."""
        return self._counts[place][_COUNTS.index("parent")]

    def state_dict(self) -> dict[str, Any]:
        """Everything; numbers as arrays, because there are many."""
        return {
            "counts": np.array(self._counts, np.int64).reshape(-1, len(_COUNTS)),
            "scores": np.array(self._scores, np.float64),
            "settings": [dict(each) for each in self._settings],
            "mutations": [asdict(each) for each in self.mutations],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self._counts = [tuple(row) for row in cast("list[list[int]]", np.asarray(state["counts"]).tolist())]
        self._scores = cast("list[float]", np.asarray(state["scores"]).tolist())
        self._settings = [dict(each) for each in state["settings"]]
        self._setting_of = {json.dumps(each): at for at, each in enumerate(self._settings)}
        self.mutations = [Mutation(**each) for each in state["mutations"]]
