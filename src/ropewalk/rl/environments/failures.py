"""What happens to episodes whose environment fails: `ON_ERROR`, and `EpisodeFailures`, which says when to give up."""

from __future__ import annotations

ON_ERROR = ("raise", "truncate")
"""Whether an error is raised, or cuts the episode."""

SAME_SEED_LIMIT = 3
"""Failures in a row of episodes with one seed after which to give up: such an episode always fails."""

LIMIT = 10
"""Failures in a row of any episodes after which to give up: they would make all that is learned from."""


def check_on_error(on_error: str) -> None:
    """Check what is to happen on an error.

    Raises:
        ValueError: it is not in `ON_ERROR`.
    """
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error is {on_error!r}; use one of {', '.join(map(repr, ON_ERROR))}")


class EpisodeFailures:
    """Counts the failures in a row of one environment. Pure."""

    def __init__(self) -> None:
        self._seeds: list[int] = []

    def add(self, seed: int) -> str | None:
        """Count a failure in an episode with this seed; returns why to give up, or None."""
        self._seeds.append(seed)
        if self._seeds[-SAME_SEED_LIMIT:] == [seed] * SAME_SEED_LIMIT:
            return f"it failed {SAME_SEED_LIMIT} times in a row with the seed {seed}"
        if len(self._seeds) >= LIMIT:
            seeds = ", ".join(map(str, self._seeds))
            return f"each of its last {LIMIT} episodes failed; their seeds are {seeds}"
        return None

    def clear(self) -> None:
        """Note that an episode came to its end."""
        self._seeds.clear()


__all__ = ["LIMIT", "ON_ERROR", "SAME_SEED_LIMIT", "EpisodeFailures", "check_on_error"]
