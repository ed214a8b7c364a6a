"""Training of a single member with a schedule that population based training has found.

Jaderberg et al.: Population Based Training of Neural Networks, 2017 (https://arxiv.org/abs/1711.09846), section 4.4:
the result of a run is the schedule, not only the last hyperparameters. With the trials of that run, training gives the
same states; with others it shows whether the schedule was good or lucky.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ropewalk.pool.seeds import derive
from ropewalk.population.algorithm import Algorithm, Evaluator
from ropewalk.population.algorithms.pbt_history import PBTSchedule
from ropewalk.population.algorithms.pbt_member import Interval, PBTMember, TrainInterval
from ropewalk.population.algorithms.pbt_states import StateFolder, StateRef
from ropewalk.population.identity import check_identity
from ropewalk.population.outcome import Outcome


class PBTReplay(Algorithm[Interval]):
    """One member that is trained with a schedule from `PBT.schedule()`. The training function is that of `PBT`.

    Jaderberg et al., Population Based Training of Neural Networks, 2017 (https://arxiv.org/abs/1711.09846), section
    4.4.

    Args:
        schedule: the hyperparameters, interval by interval.
        folder: as in `PBT`; not the folder of the run that found the schedule.
        keep: as in `PBT`.
        seed: seed of the trials; None gives each interval the trial that it had when the schedule was found.
    """

    def __init__(
        self, schedule: PBTSchedule, *, folder: str | Path | None = None, keep: int = 3, seed: int | None = None
    ) -> None:
        super().__init__(1, seed or 0)
        if not schedule.stretches:
            raise ValueError("the schedule is empty; PBT has one after its first scores")
        self._stretches, self._seed = schedule.stretches, seed
        self._folder = StateFolder(folder, keep)
        self._evaluator = TrainInterval(self._folder.path)
        self._at = 0
        self._steps = 0
        self._is_under_way = False
        self._state: StateRef | None = None

    def ask(self, n: int) -> list[Interval]:
        """Return the next interval of the schedule, if the previous one was told."""
        if n < 1 or self._is_under_way or self.finished:
            return []
        self._is_under_way = True
        stretch = self._stretches[self._at]
        seed = stretch.seed if self._seed is None else derive(self._seed, self._at)
        hyperparameters = dict(stretch.hyperparameters)
        return [Interval(0, self._at, self._steps, stretch.length, hyperparameters, self._state, seed)]

    def tell(self, candidates: Sequence[Interval], outcomes: Sequence[Outcome]) -> None:
        """Record the new state.

        Raises:
            RuntimeError: an interval failed, or the state was lost.
        """
        for interval, outcome in zip(candidates, outcomes, strict=True):
            if interval.number != self._at:
                continue
            self._is_under_way = False
            if outcome.failure:
                raise RuntimeError(
                    f"interval {self._at} of {len(self._stretches)} of the schedule failed, and there is no other "
                    f"member to go on from: {outcome.failure}"
                )
            self._at, self._state = self._at + 1, outcome.held
            self._steps += outcome.steps or interval.length
            self.generation: int = self._at
            self._folder.remove([self._at])

    def drop(self, candidates: Sequence[Interval]) -> None:
        """Note that the interval will not be told; it is asked for again."""
        self._is_under_way &= all(interval.number != self._at for interval in candidates)

    def evaluator(self) -> Evaluator[Interval]:
        """Return the evaluator, which trains the member."""
        return self._evaluator

    @property
    def finished(self) -> bool:
        """Whether the whole schedule was trained."""
        return self._at == len(self._stretches)

    def incumbent(self) -> PBTMember | None:
        """Return the member; its state is fetched when it is read."""
        if not self._at:
            return None
        stretch = self._stretches[self._at - 1]
        return PBTMember(0, self._steps, stretch.length, stretch.hyperparameters, self._state)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the schedule, and the name of the state's file."""
        return {
            "stretches": len(self._stretches),
            "at": self._at,
            "steps": self._steps,
            "is_under_way": self._is_under_way,
            "files": self._folder.save([self._state]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        check_identity({"stretches": state["stretches"]}, {"stretches": len(self._stretches)})
        (self._state,) = self._folder.load(state["files"])
        self._at = self.generation = int(state["at"])
        self._steps, self._is_under_way = int(state["steps"]), bool(state["is_under_way"])
