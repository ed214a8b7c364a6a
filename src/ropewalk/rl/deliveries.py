"""`Deliveries`: how old the blocks are that each actor delivers, and which are too old. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass

from ropewalk.rl.replay.insertion import Insertion
from ropewalk.rl.variables import version_lag

_MOST_REFUSED = 5
"""Blocks of one group with values that are not finite, after which more of them are not waited for."""
_FORGIVEN_BY = 2
"""Finite blocks that make up for one that is not: a group of which more than a third are not finite is given up."""
_SMALL_LAG = 5
"""Updates by which an actor may be further behind than twice the others before that is shown."""


@dataclass(slots=True)
class ActorFacts:
    """What is known of the actors of one group of environments.

    Attributes:
        blocks: the blocks that came into replay.
        stale: blocks that were dropped because they were too old.
        refused: blocks that had values which are not finite.
        lives: actors, one after the other, that have delivered.
        lag: updates by which the weights of the last block were behind the newest ones when it came.
        lag_max: the largest such number.
    """

    blocks: int = 0
    stale: int = 0
    refused: int = 0
    lives: int = 0
    lag: int = 0
    lag_max: int = 0


class Deliveries:
    """Counts the blocks of each group.

    Args:
        max_lag: updates by which the weights of a block may be behind; None: any number.

    Attributes:
        lost_blocks: blocks that actors had delivered, or were about to, and that were lost with a learner.
    """

    def __init__(self, max_lag: int | None) -> None:
        self._max_lag = max_lag
        self._actors: dict[int, ActorFacts] = {}
        self._lags: dict[int, list[int]] = {}
        self._burdens: Counter[int] = Counter()
        """Of each group, its blocks that were not finite and for which others have not made up, times
        `_FORGIVEN_BY`."""
        self._lost: dict[str, int] = {}
        self._lost_before = 0

    @property
    def lost_blocks(self) -> int:
        return self._lost_before + sum(self._lost.values())

    @property
    def actors(self) -> Mapping[int, ActorFacts]:
        """Facts by group; a copy."""
        return deepcopy(self._actors)

    @property
    def lags(self) -> Mapping[int, list[int]]:
        """Of each group, the number of its blocks by lag: between one of `lag_edges` and the next; a copy."""
        return {group: counts.copy() for group, counts in self._lags.items()}

    def is_stale(self, insertion: Insertion, newest: int) -> bool:
        """Return whether a block is too old to be learned from."""
        return self._max_lag is not None and version_lag(newest, insertion.version) > self._max_lag

    def take(self, insertion: Insertion, newest: int, *, stale: bool) -> None:
        """Note a block."""
        facts = self._facts(insertion.run_id)
        self._burdens[_group(insertion.run_id)] -= self._burdens[_group(insertion.run_id)] > 0
        facts.lives += insertion.sequence == 0
        facts.blocks += not stale
        facts.stale += stale
        facts.lag = version_lag(newest, insertion.version)
        facts.lag_max = max(facts.lag_max, facts.lag)
        lags = self._lags.setdefault(_group(insertion.run_id), [])
        place = _place_of(facts.lag)
        if place >= len(lags):
            lags += [0] * (place + 1 - len(lags))
        lags[place] += 1

    def refuse(self, run_id: str) -> bool:
        """Note a block with values that are not finite; returns False where too many blocks of a group are like that.

        That is the fifth in a row, or one of several of which others have not made up for five.
        """
        self._facts(run_id).refused += 1
        self._burdens[_group(run_id)] += _FORGIVEN_BY
        return self._burdens[_group(run_id)] < _MOST_REFUSED * _FORGIVEN_BY

    def has_refused(self, run_id: str) -> bool:
        """Return whether blocks of the group of this run had values that are not finite."""
        return self._facts(run_id).refused > 0

    def _facts(self, run_id: str) -> ActorFacts:
        return self._actors.setdefault(_group(run_id), ActorFacts())

    def lose(self, run_id: str, num_blocks: int) -> None:
        """Note that the last blocks of a stream are lost; of several notes of one stream the largest counts."""
        self._lost[run_id] = max(num_blocks, self._lost.get(run_id, 0))

    def load_lost(self, num_blocks: int) -> None:
        """Go on from a number of lost blocks."""
        self._lost_before, self._lost = num_blocks, {}


def lag_edges(num: int) -> list[int]:
    """Return the least lag of each of the first `num` bins: 0, 1, 2, 3, 5, 9, 17 and so on."""
    return [0, 1, *(2**power + 1 for power in range(max(0, num - 2)))][:num]


def _place_of(lag: int) -> int:
    """Return the bin of a lag; see `lag_edges`."""
    return 0 if lag == 0 else (lag - 1).bit_length() + 1


def lag_in_words(actors: Mapping[int, ActorFacts]) -> str:
    """Say how old blocks are, if those of one actor are far older than most, and how many were dropped; otherwise "".

    Args:
        actors: facts by group of environments.
    """
    dropped = sum(facts.stale for facts in actors.values())
    refused = sum(facts.refused for facts in actors.values())
    not_finite = f"{refused:,} blocks dropped that were not finite" if refused else ""
    lags = sorted(facts.lag for facts in actors.values())
    if not lags or (lags[-1] <= 2 * lags[len(lags) // 2] + _SMALL_LAG and not dropped):
        return not_finite
    slowest = max(actors, key=lambda group: actors[group].lag)
    parts = [f"group {slowest}: {lags[-1]}", *([f"{dropped:,} blocks dropped"] if dropped else [])]
    return "   ".join(filter(None, [f"lag {lags[len(lags) // 2]} ({', '.join(parts)})", not_finite]))


def _group(run_id: str) -> int:
    return int(run_id.partition("#")[0])


__all__ = ["ActorFacts", "Deliveries", "lag_edges", "lag_in_words"]
