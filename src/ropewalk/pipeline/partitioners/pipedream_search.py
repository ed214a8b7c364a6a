"""PipeDream's dynamic program over states and levels, vectorised.

At one level, with `best[m][j, i]` the seconds of the slowest stage of the best pipeline between states
i and j on m components of the level below (Narayanan et al., SOSP'19, section 3.1):

    best[m][j, i] = min(first stage alone on m,  min over cuts k and r < m of max(best[m - r][k, i], later[r][k, j]))

    state   i ────────────────── k ──────────── j        the difference of two states is a stage
             best[m - r][k, i]     later[r][k, j]

The next level uses best[all] as the seconds between two states. Starts i are numbered so that start
0 is the empty set and start i + 1 is state i.

PipeDream's own program computes each (i, k, j, m, r) in Python. Here a cut k is tried for all pairs
(i, j) at once, without the pairs that cannot be part of a plan as good as plain data parallelism:
stages grow with j and pipelines with falling i, so for each k only a window of pairs remains.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ropewalk.pipeline.partitioners.antichains import Floats, States
from ropewalk.pipeline.partitioners.pipedream_costs import PipeDreamCosts
from ropewalk.pipeline.topology import Level

_ROUNDING = 1 + 1e-9
_MANY = 100
"""Number of states from which on a subset is searched first."""
_STEP = 5
"""The subset has every fifth state, to find a good plan quickly."""


@dataclass(frozen=True)
class Rules:
    """The options of PipeDream's optimizer."""

    straight: bool = False
    """Whether to use no replicas."""
    fewer_machines: bool = False
    """Whether a plan on fewer machines may win."""
    memory_bytes: float = math.inf
    """`--use_memory_constraint -s`: most bytes of the weights and activations of a stage, times the components after it
    over its replicas. The current mini-batch, gradients and the optimizer are not counted."""
    idle: bool = False
    """Whether components may be idle at no cost; for bounds."""


class LevelStage(NamedTuple):
    """A stage of a pipeline at one level: the operators from a start to a state, on `num` components from `first`."""

    start: int
    state: int
    first: int
    num: int


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Limits for the parts of a plan at one level, if the plan is as good as data parallelism."""

    useful_ends: list[slice]
    """For each number of components, the states where a pipeline on them that begins at the empty set may end."""
    part_s: float
    """Most seconds of a pipeline that begins after another."""


@dataclass
class _Solved:
    """The tables of one level; see the module's docstring."""

    rules: Rules
    stashed_bytes: Floats
    num_components: int
    best: list[Floats]
    """One table for each number of components, beginning with 0."""
    alone: list[Floats]
    later: list[Floats]

    def behind(self, components: int, replicas: int) -> Floats:
        """Return the seconds of a pipeline's last stage, of shape [cut, state]; `inf` if it does not fit into memory.

        Args:
            components: components that run the pipeline.
            replicas: components that run its last stage.
        """
        if self.rules.memory_bytes == math.inf:
            return self.later[replicas]
        rounds_after = math.ceil((self.num_components - components) / replicas)
        fits = self.stashed_bytes[1:] * rounds_after <= self.rules.memory_bytes
        return np.where(fits, self.later[replicas], np.inf)

    def pieces(self, start: int, state: int, components: int) -> list[LevelStage]:
        """Return the best pipeline between a start and a state.

        Of equally good pipelines it is the first one found, with few replicas of the last stages.

        Args:
            start: where the pipeline begins; 0 is the empty set, i + 1 is state i.
            state: where it ends.
            components: components that run it.
        """
        found: list[LevelStage] = []
        while True:
            while self._needs_fewer(start, state, components):
                components -= 1
            seconds = self.best[components][state, start]
            if self.alone[components][state, start] == seconds:
                return [LevelStage(start, state, 0, components), *reversed(found)]
            cut, replicas = self._last_cut(start, state, components, seconds)
            components -= replicas
            found.append(LevelStage(cut + 1, state, components, replicas))
            state = cut

    def _needs_fewer(self, start: int, state: int, components: int) -> bool:
        return (
            self.rules.fewer_machines
            and components > 1
            and bool(self.best[components - 1][state, start] == self.best[components][state, start])
        )

    def _last_cut(self, start: int, state: int, components: int, seconds: float) -> tuple[int, int]:
        for replicas in range(1, min(components, len(self.later))):
            before, behind = self.best[components - replicas][:-1, start], self.behind(components, replicas)[:, state]
            (cuts,) = np.nonzero(np.maximum(before, behind) == seconds)
            if len(cuts):
                return int(cuts[0]), replicas
        raise AssertionError("a number of the table comes from a cut or from a stage alone")


def data_parallel_s(states: States, costs: PipeDreamCosts, levels: Sequence[Level], speed: float) -> float:
    """Return the seconds of a mini-batch with a copy of the last state's operators on each device."""
    seconds, weights, size = states.work_s[-1:] / speed, states.weight_bytes[-1:], 1
    for level in levels:
        seconds = costs.first_stage_s(seconds, weights, level.count, level.bandwidth, size)
        size = level.count
    return float(seconds[0])


def search(states: States, costs: PipeDreamCosts, levels: Sequence[Level], *, speed: float, rules: Rules) -> PlanSearch:
    """Search for the best plan, over as few states as prove it.

    With several levels, time grows with the cube of the states, and operators that neither take time nor hold bytes
    (the elements of a tuple, say) multiply the states. Of states that differ only in such operators one is enough,
    unless a stage without work occupies machines that would slow down others. A search with machines that may be idle
    shows whether this can happen.

    Args:
        states: the places to cut.
        costs: the cost model.
        levels: levels of the topology, from the inside out.
        speed: speed of the devices.
        rules: options of the search.
    """

    def over(these: States, of: Rules, enough_s: float = math.inf) -> PlanSearch:
        return PlanSearch(these, costs, levels, speed=speed, rules=of, enough_s=enough_s)

    enough_s = math.inf
    if len(states) >= _MANY and rules.memory_bytes == math.inf:
        largest, bounds = states.alike()
        if len(largest) < len(states):
            found = over(largest, rules)
            if over(bounds, replace(rules, idle=True), found.objective_s).objective_s >= found.objective_s:
                return found
            enough_s = found.objective_s
        else:  # a good plan over a subset excludes most parts of the others
            enough_s = over(states.some(np.arange(len(states) - 1, -1, -_STEP)[::-1]), rules).objective_s
    return over(states, rules, enough_s)


def _bounds(work_s: Floats, enough_s: float, levels: Sequence[Level], number: int, *, fewer: bool) -> _Bounds:
    """Bounds from the work divided by all devices that can do it: inside components of this level, and outside.

    Replicas of an outer level divide the inner result by their number. Only the whole model can have all replicas.
    """
    outer = [level.count for level in levels[number + 1 :]]
    inside = math.prod(level.count for level in levels[:number])
    count, outside = levels[number].count, math.prod(outer)
    useful_ends: list[slice] = []
    for components in range(count + 1):
        useful = work_s <= enough_s * components * inside * outside
        if not outer:  # the other components must do the remaining work
            useful &= work_s[-1] - work_s <= enough_s * (count - components) * inside
        useful[-1] = fewer  # otherwise only all components together reach the last state
        found = np.flatnonzero(useful)
        useful_ends.append(slice(int(found[0]), int(found[-1]) + 1) if len(found) else slice(0, 0))
    useful_ends[count] = slice(0 if outer else len(work_s) - 1, len(work_s))
    partly = outside - outside // max(outer, default=1)
    return _Bounds(useful_ends, enough_s * partly if partly else 0.0)


class PlanSearch:
    """The search for one request.

    Args:
        states: the places to cut.
        costs: the cost model.
        levels: levels of the topology, from the inside out.
        speed: speed of the devices.
        rules: options of the search.
        enough_s: plans that take more seconds than this need not be found.
    """

    def __init__(
        self,
        states: States,
        costs: PipeDreamCosts,
        levels: Sequence[Level],
        *,
        speed: float = 1.0,
        rules: Rules,
        enough_s: float = math.inf,
    ) -> None:
        self.states = states
        self.levels = levels
        self._costs = costs
        self._rules = rules
        self._cut_bytes = costs.cut_bytes(states)
        self._weight_bytes = states.between(states.weight_bytes)
        self._stashed_bytes = states.between(states.weight_bytes + states.activation_bytes)
        follows = np.vstack([np.ones(len(states), dtype=bool), states.nested[:-1]])
        below_s = np.where(follows, states.between(states.work_s) / speed, np.inf)
        # Data parallelism is always a possible plan, unless pipelines are straight, and passes PipeDream's memory test.
        if not rules.straight:
            enough_s = min(enough_s, data_parallel_s(states, costs, levels, speed))
        enough_s *= _ROUNDING
        self._solved: list[_Solved] = []
        size = 1
        for number, level in enumerate(levels):
            num_starts = 1 if number == len(levels) - 1 else len(below_s)
            bounds = _bounds(states.work_s / speed, enough_s, levels, number, fewer=rules.fewer_machines or rules.idle)
            self._solved.append(self._solve(below_s, level, size, num_starts, bounds))
            below_s = self._solved[-1].best[level.count].T
            size = level.count
        self.objective_s = float(self._solved[-1].best[levels[-1].count][-1, 0])

    def stages(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """Yield the start, the state and the devices of each stage of the best plan.

        If a level has several replicas of the pipeline inside, replica b of a stage is in the inner pipeline b mod
        their number, so that a micro-batch, which goes to replica (its number mod replicas), stays inside one of them.
        """
        last = len(self._cut_bytes) - 1
        yield from self._place(len(self.levels) - 1, 0, last, (0,))

    def _place(
        self, number: int, start: int, state: int, components: tuple[int, ...]
    ) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        count = self.levels[number].count
        for piece in self._solved[number].pieces(start, state, count):
            inner = tuple(
                component * count + place
                for place in range(piece.first, piece.first + piece.num)
                for component in components
            )
            if number == 0:
                yield piece.start, piece.state, inner
            else:
                yield from self._place(number - 1, piece.start, piece.state, inner)

    def _solve(self, below_s: Floats, level: Level, size: int, num_starts: int, bounds: _Bounds) -> _Solved:
        alone = [np.empty((0, 0))]
        later = [np.empty((0, 0))]
        out_bytes = np.append(self._cut_bytes[:-1], 0.0)
        for num in range(1, level.count + 1):
            if self._rules.straight and num > 1:
                alone.append(np.full((below_s.shape[1], num_starts), np.inf))
                continue
            seconds = self._costs.first_stage_s(
                below_s[:num_starts], self._weight_bytes[:num_starts], num, level.bandwidth, size
            )
            if self._rules.memory_bytes < math.inf:
                rounds_after = math.ceil((level.count - num) / num)
                fits = self._stashed_bytes[:num_starts] * rounds_after <= self._rules.memory_bytes
                seconds = np.where(fits, seconds, np.inf)
            alone.append(np.ascontiguousarray(seconds.T))
            if num < level.count:
                later.append(
                    self._costs.later_stage_s(
                        below_s[1:],
                        self._weight_bytes[1:],
                        self._cut_bytes[:-1, None],
                        out_bytes[None, :],
                        num,
                        level.bandwidth,
                    )
                )
        solved = _Solved(self._rules, self._stashed_bytes, level.count, [alone[0]], alone, later)
        for components in range(1, level.count + 1):
            solved.best.append(_best(solved, components, bounds))
        return solved


def _best(solved: _Solved, components: int, bounds: _Bounds) -> Floats:
    best = solved.alone[components].copy()
    if solved.rules.fewer_machines and components > 1:
        several = np.tri(*best.shape, k=-1, dtype=np.bool_)  # the repository tries fewer if there is a place to cut
        best = np.where(several, np.minimum(best, solved.best[components - 1]), best)
    if solved.rules.idle and components > 1:
        best = np.minimum(best, solved.best[components - 1])
    ends = bounds.useful_ends[components]
    for replicas in range(1, min(components, len(solved.later))):
        before, later = solved.best[components - replicas], solved.behind(components, replicas)
        cuts = bounds.useful_ends[components - replicas]
        slowest = np.maximum(before[:-1][cuts, :1], later[cuts, ends])
        best[ends, 0] = np.minimum(best[ends, 0], slowest.min(axis=0, initial=np.inf))
        if best.shape[1] > 1:
            _cut_behind_others(best, before, later, bounds.part_s)
    return best


def _cut_behind_others(best: Floats, before: Floats, later: Floats, bound: float) -> None:
    """Try each cut k, for all starts but 0: best[j, i] = min(best[j, i], max(before[k, i], later[k, j]))."""
    useful_ends, useful_starts = later <= bound, before <= bound
    useful_starts[:, 0] = False
    ends = np.where(useful_ends.any(axis=1), len(best) - useful_ends[:, ::-1].argmax(axis=1), 0)
    starts = np.where(useful_starts.any(axis=1), useful_starts.argmax(axis=1), len(best))
    room = np.empty(best.size)
    for cut in range(len(later)):
        start, end = starts[cut], ends[cut]
        if start > cut or end <= cut + 1:
            continue
        shape = (end - cut - 1, cut + 1 - start)
        slowest = room[: shape[0] * shape[1]].reshape(shape)
        np.maximum(later[cut, cut + 1 : end, None], before[cut, start : cut + 1], out=slowest)
        window = best[cut + 1 : end, start : cut + 1]
        np.minimum(window, slowest, out=window)
