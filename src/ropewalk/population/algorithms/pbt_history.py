"""The history of population based training: the intervals as a tree, the mutations, the schedule of a member.

member 0   ●──●──●──●╌╌╌╌╌╌╌╌╌╌╌╌╌ copied 1 here: its first four intervals are a dead branch
member 1   ●──●──●──●──●──●──●
                       └──●──●     member 0, with other hyperparameters: a schedule is a path from a leaf to the root
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
    """An interval that was trained successfully."""

    member: int
    number: int
    """Index of the interval among those of its member."""
    steps: int
    """Number of steps before it."""
    length: int
    """Number of steps that were requested."""
    trained: int
    """Number of steps that were trained."""
    score: float
    seed: int
    """Seed of its trial."""
    hyperparameters: dict[str, Any]

    @property
    def end(self) -> int:
        """Number of steps after it."""
        return self.steps + self.trained


@dataclass(frozen=True, slots=True)
class Mutation:
    """The replacement of a member's state and hyperparameters."""

    reason: str
    """The reason: "exploit"; or "lost" or "restart", after its state was lost with its host."""
    member: int
    number: int
    """Number of the member's next interval."""
    steps: int
    """Number of steps of the replaced state."""
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
        does = source if self.donor >= 0 else "starts over"
        return f"{self.reason}: member {self.member} ({self.score}, {self.steps} steps) {does} and trains {self.after}"


@dataclass(frozen=True, slots=True)
class PBTSchedule:
    """The history of a state: the hyperparameters of each interval of its training, in order."""

    stretches: tuple[TrainedInterval, ...]

    def __len__(self) -> int:
        return len(self.stretches)

    def __iter__(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Yield (first step, step after the last, hyperparameters) for each change of the hyperparameters."""
        begin = 0
        for at, stretch in enumerate(self.stretches):
            following = self.stretches[at + 1] if at + 1 < len(self.stretches) else None
            if following is None or following.hyperparameters != stretch.hyperparameters:
                yield begin, stretch.end, stretch.hyperparameters
                begin = stretch.end

    def save(self, path: str | Path) -> None:
        """Write the schedule as JSON."""
        Path(path).write_text(json.dumps([asdict(stretch) for stretch in self.stretches], indent=1) + "\n")

    @staticmethod
    def load(path: str | Path) -> PBTSchedule:
        """Read a schedule that `save` has written.

        Raises:
            ValueError: the file is not a schedule.
            OSError: the file cannot be read.
        """
        try:
            return PBTSchedule(tuple(TrainedInterval(**each) for each in json.loads(Path(path).read_text())))
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} holds no schedule: {error}; PBTSchedule.save writes one") from error


_COUNTS = ("member", "number", "steps", "length", "trained", "parent", "setting")


class History:
    """All trained intervals and all mutations of a run.

    Args:
        seed: seed of the algorithm.
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
        """Add an interval.

        Args:
            interval: the interval as it was asked for.
            trained: number of steps that were trained.
            score: the score after it.
            parent: index in the history of the interval from whose state it began; -1 for none.

        Returns:
            Its index in the history.
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

    def member(self, place: int) -> int:
        """Return the member of the interval at an index of the history."""
        return self._counts[place][_COUNTS.index("member")]

    def path(self, place: int) -> list[list[int]]:
        """Return the way of the state after an interval through the members, from the first on; empty for -1.

        Each part is the member, the first step that was trained there, and the step after the last.
        """
        path: list[list[int]] = []
        while place >= 0:
            member, _, steps, _, trained, parent, _ = self._counts[place]
            if path and path[-1][0] == member:
                path[-1][1] = steps
            else:
                path.append([member, steps, steps + trained])
            place = parent
        return path[::-1]

    def stretch(self, place: int) -> TrainedInterval:
        """Return the interval at an index of the history."""
        member, number, steps, length, trained, _, setting = self._counts[place]
        seed, settings = derive(derive(self._seed, member), number), dict(self._settings[setting])
        return TrainedInterval(member, number, steps, length, trained, self._scores[place], seed, settings)

    def schedule(self, place: int) -> PBTSchedule:
        """Return the schedule of the state after an interval; an empty schedule for -1."""
        stretches: list[TrainedInterval] = []
        while place >= 0:
            stretches.append(self.stretch(place))
            place = self.parent(place)
        return PBTSchedule(tuple(reversed(stretches)))

    def parent(self, place: int) -> int:
        """Return the index of the previous interval, of this member or of the one that it copied; -1 for none."""
        return self._counts[place][_COUNTS.index("parent")]

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state; numbers are in arrays, because there are many."""
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
