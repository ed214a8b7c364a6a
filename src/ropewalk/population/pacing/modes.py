"""The modes of a run: what is waited for between two asks, with the options of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from ropewalk.near_names import check_choice
from ropewalk.population.pacing.stragglers import StragglerPolicy

ModeName = Literal["generation", "steady"]


@dataclass(frozen=True, slots=True)
class GenerationMode:
    """Ask for a generation, wait for it, and tell its outcomes together.

    Args:
        stragglers: the policy for the last evaluations of a generation: `StragglerPolicy.wait()`,
            `StragglerPolicy.drop(after, grace)` or `StragglerPolicy.carry(after, grace)`.

    Raises:
        TypeError: `stragglers` is no policy.
    """

    stragglers: StragglerPolicy = field(default_factory=StragglerPolicy.wait)

    def __post_init__(self) -> None:
        if not isinstance(self.stragglers, StragglerPolicy):
            raise TypeError(
                "stragglers must be a StragglerPolicy, such as StragglerPolicy.drop(after=0.9), not "
                f"{self.stragglers!r}"
            )


@dataclass(frozen=True, slots=True)
class SteadyMode:
    """Tell each outcome when it arrives, and ask for another candidate.

    Args:
        ahead: number of submitted candidates per worker; more than 1 hides the latency of the launcher.

    Raises:
        ValueError: `ahead` is below 1.
    """

    ahead: float = 1.0

    def __post_init__(self) -> None:
        if not self.ahead >= 1:
            raise ValueError(f"ahead must be at least 1 candidate for each worker, not {self.ahead}")


Mode = GenerationMode | SteadyMode


def mode_of(given: Mode | ModeName) -> Mode:
    """Return a mode; a name stands for that mode with its defaults.

    Raises:
        ValueError: there is no mode with this name.
    """
    if isinstance(given, Mode):
        return given
    check_choice("mode", given, get_args(ModeName))
    return SteadyMode() if given == "steady" else GenerationMode()


__all__ = ["GenerationMode", "Mode", "ModeName", "SteadyMode", "mode_of"]
