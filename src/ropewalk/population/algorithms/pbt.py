"""Population based training: members train concurrently; bad ones copy good ones and change their hyperparameters.

Jaderberg, Dalibard, Osindero, Czarnecki, Donahue, Razavi, Vinyals, Green, Dunning, Simonyan, Fernando, Kavukcuoglu:
Population Based Training of Neural Networks, 2017 (https://arxiv.org/abs/1711.09846), algorithm 1.

  step, eval    an interval of the user's training function, in a worker; its score is eval
  ready         after each interval, once a member has trained for `burn_in` steps
  exploit       truncation selection: a member of the lowest quantile copies one of the highest, drawn uniformly
  explore       each hyperparameter is drawn again with `resample_probability`, else multiplied by one of `factors`

    score of a member ─▶ lowest quantile? ─▶ no:  it continues
                                          └▶ yes: state, steps and score of a high one, its hyperparameters changed

A copy keeps the score of the copied member until it has trained itself, as in algorithm 1, where eval does not depend
on the hyperparameters. Only a better member is copied: members with equal scores continue with their own
hyperparameters.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ropewalk.escaping import escaped_lines
from ropewalk.near_names import check_choice
from ropewalk.pool.seeds import derive
from ropewalk.population.algorithm import Algorithm, Evaluator, Panel
from ropewalk.population.algorithms.pbt_explorer import Explore, Explorer, quantiles
from ropewalk.population.algorithms.pbt_history import History, Mutation, PBTSchedule
from ropewalk.population.algorithms.pbt_member import LOST, Interval, PBTMember, TrainInterval
from ropewalk.population.algorithms.pbt_standing import MOST_IN_VAIN, SAVED, MemberStanding
from ropewalk.population.algorithms.pbt_states import StateFolder
from ropewalk.population.hyperparameters import Space
from ropewalk.population.identity import check_identity
from ropewalk.population.outcome import Outcome
from ropewalk.population.panels.lineage import PBTLineagePanel
from ropewalk.population.panels.schedules import schedules_panel

logger = logging.getLogger(__name__)


class PBT(Algorithm[Interval]):
    """Population based training.

    Jaderberg et al., Population Based Training of Neural Networks, 2017 (https://arxiv.org/abs/1711.09846),
    algorithm 1.

    The fitness function trains: `train(member, trial)` continues from `member.state` for `member.interval` steps with
    `member.hyperparameters`, sets `member.state` to the result, and returns a score to maximise (or an `Outcome`; its
    `steps` count in place of the interval). The trial's seed is the same for an interval of a member in every run with
    this `seed`.

    Asynchronous (mode="steady"): a member that has trained is compared with the latest scores of the others, no member
    waits, and members take turns if there are more members than workers. The decisions depend on the order of the
    tells. Synchronous: all members train, then all are compared; the result is the same in any order.

    Args:
        hyperparameters: names to distributions (`Uniform`, `LogUniform`, `Integers`, `Choice`); values are constants.
        population: number of members.
        interval: number of steps between two decisions; the training function defines the unit.
        steps: number of steps after which a member is done; None continues until `evaluate` ends the run. A member that
            copies a state with fewer steps trains those steps again, at most `steps` of them in all; a member is given
            up when 10 of its intervals have failed, were dropped or found their state lost, without any progress. So
            a run with `steps` always ends: while no state is lost, no member trains more than twice that number.
        quantile: share of the members that copy, and that are copied; at most a half.
        resample_probability: probability of drawing a hyperparameter again, instead of perturbing it.
        factors: factors for perturbation.
        explore: computes new hyperparameters from those of a better member, in place of the two above.
        burn_in: number of steps before a member may copy another.
        synchronous: whether a round ends before the next begins.
        initial: hyperparameters of the first members; missing ones are drawn.
        folder: folder in which workers write states, one file each; shared by all hosts, and by no other run. None
            keeps states in the memory of the hosts: then there are no checkpoints, and states end with the pool.
        keep: number of the last `state_dict`s whose files are kept: one more than the number of kept checkpoints.
        lost: what a member does if its state is lost with its host: "copy" another member as in exploit, "restart" from
            the beginning, or "raise".
        seed: seed of all random decisions.
    """

    def __init__(
        self,
        hyperparameters: Space,
        *,
        population: int = 16,
        interval: int = 1,
        steps: int | None = None,
        quantile: float = 0.25,
        resample_probability: float = 0.25,
        factors: Sequence[float] = (0.8, 1.2),
        explore: Explore | None = None,
        burn_in: int = 0,
        synchronous: bool = False,
        initial: Sequence[Mapping[str, Any]] = (),
        folder: str | Path | None = None,
        keep: int = 3,
        lost: Literal["copy", "restart", "raise"] = "copy",
        seed: int = 0,
    ) -> None:
        super().__init__(population, seed)
        _check_at_least(1, interval=interval, steps=interval if steps is None else steps)
        _check_at_least(0, burn_in=burn_in)
        if not 0 < quantile <= 0.5:
            raise ValueError(f"quantile must be above 0 and at most 0.5, not {quantile}")
        check_choice("lost", lost, ("copy", "restart", "raise"))
        if len(initial) > population:
            raise ValueError(f"initial has {len(initial)} members, but population is {population}")
        self._interval, self._steps, self._quantile, self._burn_in = interval, steps, quantile, burn_in
        self._synchronous, self._lost = synchronous, lost
        self._explorer = Explorer(hyperparameters, resample_probability, factors, explore, seed)
        self._folder = StateFolder(folder, keep)
        self._evaluator = TrainInterval(self._folder.path)
        self._ended = 0
        given = [self._explorer.checked(values, "initial") for values in initial]
        drawn = [self._explorer.first(number) for number in range(len(given), population)]
        self._members = [MemberStanding(values) for values in given + drawn]
        self._history = History(seed)

    # --- ask and tell -------------------------------------------------------------------------------------------------

    def ask(self, n: int) -> list[Interval]:
        """Return intervals of ready members, those with the fewest first; fewer than `n` if all are under way."""
        ready = [number for number, member in enumerate(self._members) if self._is_ready(member)]
        ready.sort(key=lambda number: (self._members[number].number, number))
        asked: list[Interval] = []
        for number in ready[:n]:
            member = self._members[number]
            member.is_under_way = True
            length = self._interval if self._steps is None else min(self._interval, self._steps - member.steps)
            seed = derive(derive(self.seed, number), member.number)
            hyperparameters = dict(member.hyperparameters)
            asked.append(Interval(number, member.number, member.steps, length, hyperparameters, member.state, seed))
        return asked

    def tell(self, candidates: Sequence[Interval], outcomes: Sequence[Outcome]) -> None:
        """Record the scores; members that are ready exploit and explore, immediately or at the end of the round."""
        for interval, outcome in zip(candidates, outcomes, strict=True):
            if self._end(interval) and self._take(interval, outcome) and not self._synchronous:
                self._exploit_and_explore([interval.member])
        self._close_round()

    def drop(self, candidates: Sequence[Interval]) -> None:
        """Note that these will not be told: their members continue from their previous state, in another interval."""
        for interval in candidates:
            if self._end(interval):
                self._count_in_vain(interval.member, "dropped")
        self._close_round()

    def _is_ready(self, member: MemberStanding) -> bool:
        return not (member.is_under_way or member.is_waiting or member.is_done(self._steps))

    def _end(self, interval: Interval) -> bool:
        """End an interval; returns whether its member was in it."""
        member = self._members[interval.member]
        if interval.number != member.number:
            return False  # it was dropped before
        member.number += 1
        member.is_under_way, member.is_waiting = False, self._synchronous
        self._ended += 1
        return True

    def _take(self, interval: Interval, outcome: Outcome) -> bool:
        """Record an outcome; returns whether the member now has a score to compare."""
        member = self._members[interval.member]
        if outcome.failure.startswith(LOST):
            self._replace_lost(interval, outcome.failure)
            return False
        if outcome.failure:  # the member keeps its previous state
            member.score, member.has_failed = outcome.fitness, True
            self._count_in_vain(interval.member, outcome.failure)
        else:
            steps = outcome.steps or interval.length
            last = self._history.add(interval, steps, outcome.fitness, member.last)
            member.trained(steps, outcome.fitness, outcome.held, last)
        return True

    def _count_in_vain(self, number: int, why: str) -> None:
        member = self._members[number]
        member.in_vain += 1
        if member.in_vain == MOST_IN_VAIN and member.is_given_up(self._steps):
            logger.warning(
                "member %d is given up after %d steps: %d of its intervals were in vain without it getting further; "
                "the last one: %s",
                number,
                member.steps,
                MOST_IN_VAIN,
                escaped_lines(why),
            )

    def _close_round(self) -> None:
        """Compare all members of a synchronous round, once none of them is under way or still to be asked."""
        if not self._synchronous:
            before, self.generation = self.generation, self._ended // self.population
            if self.generation > before:
                self._remove_files()
        elif not any(member.is_under_way or self._is_ready(member) for member in self._members):
            waiting = [number for number, member in enumerate(self._members) if member.is_waiting]
            if waiting:
                self._exploit_and_explore(waiting)
                for number in waiting:
                    self._members[number].is_waiting = False
                self.generation += 1
                self._remove_files()

    # --- exploit and explore ------------------------------------------------------------------------------------------

    def _exploit_and_explore(self, ready: Sequence[int]) -> None:
        scores = [None if each.score is None else (each.score, not each.has_failed) for each in self._members]
        lowest, highest = quantiles(scores, ready, self._quantile)
        for number in ready:
            member = self._members[number]
            if number in lowest and member.steps >= self._burn_in and not member.is_done(self._steps):
                donors = [each for each in highest if member.may_copy(self._members[each], self._steps)]
                if donors:
                    self._copy(number, donors, "exploit", "")

    def _replace_lost(self, interval: Interval, why: str) -> None:
        if self._lost == "raise":
            raise RuntimeError(f'{why}; PBT(lost="copy") goes on from another member, lost="restart" from nothing')
        logger.warning("%s; its policy is %r", why, self._lost)
        for member in self._members:
            member.is_lost |= member.state == interval.state
        donors = sorted(filter(self._is_donor, range(self.population)), key=self._score, reverse=True)
        if self._lost == "copy" and donors:
            num = max(1, int(self._quantile * len(donors)))
            self._copy(interval.member, donors[:num], "lost", why)
        else:
            member = self._members[interval.member]
            self._note("restart", interval.member, -1, member.hyperparameters, why)
            member.begin_again()
        self._count_in_vain(interval.member, why)

    def _copy(self, number: int, donors: Sequence[int], reason: Literal["exploit", "lost"], why: str) -> None:
        member = self._members[number]
        rng = self._explorer.rng(number, member.number)
        chosen = donors[int(rng.integers(len(donors)))]
        donor = self._members[chosen]
        explored = self._explorer.explored(donor.hyperparameters, rng)
        self._note(reason, number, chosen, explored, why)
        member.copy(donor, explored)

    def _note(self, reason: str, number: int, donor: int, after: dict[str, Any], why: str) -> None:
        member, other = self._members[number], self._members[donor] if donor >= 0 else None
        steps, score = (other.steps, other.score) if other else (0, None)
        before = member.hyperparameters
        mutation = Mutation(
            reason, number, member.number, member.steps, member.score, donor, steps, score, before, after, why
        )
        self._history.mutations.append(mutation)
        self.happened("" if reason == "exploit" else "restart", str(mutation))

    def _is_donor(self, number: int) -> bool:
        member = self._members[number]
        return member.last >= 0 and not member.is_lost

    def _score(self, number: int) -> float:
        score = self._members[number].score
        return -math.inf if score is None else score

    # --- what it has found --------------------------------------------------------------------------------------------

    def evaluator(self) -> Evaluator[Interval]:
        """Return the evaluator, which trains members."""
        return self._evaluator

    @property
    def finished(self) -> bool:
        """Whether every member has trained for all its steps."""
        return all(member.is_done(self._steps) and not member.is_under_way for member in self._members)

    @property
    def can_finish(self) -> bool:
        """Whether `steps` limits the training of members."""
        return self._steps is not None

    @property
    def mutations(self) -> list[Mutation]:
        """All exploit and explore events, in order."""
        return list(self._history.mutations)

    @property
    def history(self) -> History:
        """All trained intervals, with their results."""
        return self._history

    @property
    def hyperparameters(self) -> list[dict[str, Any]]:
        """The hyperparameters of each member's next interval."""
        return [dict(member.hyperparameters) for member in self._members]

    @property
    def intervals(self) -> list[int]:
        """The number of intervals that each member was given so far, with or without success."""
        return [member.number for member in self._members]

    @property
    def best(self) -> int | None:
        """The member with the highest score now; None before the first score."""
        donors = [number for number in range(self.population) if self._is_donor(number)]
        return max(donors, key=self._score, default=None)

    def schedule(self, member: int | None = None) -> PBTSchedule:
        """Return the hyperparameters with which the state of a member was trained, interval by interval.

        Args:
            member: number of the member; None is the best.
        """
        return self._history.schedule(self._last_of_best if member is None else self._members[member].last)

    @property
    def _last_of_best(self) -> int:
        return -1 if self.best is None else self._members[self.best].last

    def panels(self) -> Mapping[str, Panel]:
        """Return the panels "schedules" and "lineage"."""
        lineage = PBTLineagePanel(self._history)
        return {
            "schedules": lambda cursor: schedules_panel(self._history, cursor),
            "lineage": lambda cursor: lineage.data(self._members, self._last_of_best, cursor),
        }

    @property
    def progress(self) -> float | None:
        """The share of all members' steps that were trained; None if `steps` does not limit them."""
        if self._steps is None:
            return None
        done = [self._steps if each.is_done(self._steps) else each.steps for each in self._members]
        return sum(done) / (self._steps * len(done))

    def incumbent(self) -> PBTMember | None:
        """Return the best member, with the hyperparameters of its training; its state is fetched when it is read."""
        if self.best is None:
            return None
        best = self._members[self.best]
        trained = self._history.stretch(best.last)
        return PBTMember(trained.member, best.steps, self._interval, trained.hyperparameters, best.state)

    def figures(self) -> dict[str, float]:
        """Return how many times members copied or were lost, and the best member's numeric hyperparameters."""
        reasons = [mutation.reason for mutation in self._history.mutations]
        figures: dict[str, float] = {
            "exploits": reasons.count("exploit"),
            "lost": len(reasons) - reasons.count("exploit"),
        }
        if self.best is not None:
            trained = self._history.stretch(self._members[self.best].last).hyperparameters
            numeric = {name: value for name, value in trained.items() if isinstance(value, int | float)}
            figures |= {f"best_{name}": float(value) for name, value in numeric.items()}
        return figures

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return all mutable state; the members' states are named, not included.

        Raises:
            ValueError: the members' states are in the memory of the hosts and cannot be named.
        """
        files = self._folder.save([member.state for member in self._members])
        self._remove_files()
        return {
            "problem": self._problem(),
            "generation": self.generation,
            "ended": self._ended,
            "members": [{field: getattr(member, field) for field in SAVED} for member in self._members],
            "files": files,
            "history": self._history.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`; intervals under way then are under way again."""
        check_identity(state["problem"], self._problem())
        files = self._folder.load(state["files"])
        self._members = [
            MemberStanding(**facts, state=file) for facts, file in zip(state["members"], files, strict=True)
        ]
        self.generation: int = int(state["generation"])
        self._ended = int(state["ended"])
        self._history.load_state_dict(state["history"])

    def _problem(self) -> dict[str, Any]:
        return {
            "hyperparameters": self._explorer.names,
            "population": self.population,
            "interval": self._interval,
            "synchronous": self._synchronous,
            "seed": self.seed,
        }

    def _remove_files(self) -> None:
        self._folder.remove([member.number for member in self._members])


def _check_at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} must be at least {least}, not {value}")
