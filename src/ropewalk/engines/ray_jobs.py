"""The driver's records of its jobs on Ray, their places and their names, and descriptions of how jobs ended."""

from __future__ import annotations

import dataclasses
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

PREFIX = "ropewalk-"
"""Begins the names of our actors: PREFIX run / request / number."""
_LOST_S = 4.0
"""Seconds without an answer after which an actor counts as lost."""


@dataclasses.dataclass(eq=False)
class PlacementGroup:
    """A placement group: places for jobs of the same size. The place of an ended job can be used again."""

    run: str
    bundle: dict[str, float]
    handle: Any
    places: list[RayJob | None]
    target: str = ""
    """The id of the node that was requested, if any."""


@dataclasses.dataclass(eq=False)
class RayJob:
    """One actor and the known state of its job."""

    name: str
    group: PlacementGroup
    actor: Any
    order: bytes
    """The order that starts it, with its secrets; dropped when it has been sent."""
    state: str = "pending"
    code: int | None = None
    why: str = ""
    log: str = ""
    node: str = ""
    """The id of the node it runs on."""
    place: str = ""
    heard: float = 0.0
    answered: int = 0
    """The number of the last order that the keeper carried out."""

    @property
    def is_over(self) -> bool:
        """Whether no part of it runs any more, as far as Ray and its keeper know."""
        return self.state in ("ended", "lost")

    @property
    def is_silent(self) -> bool:
        """Whether it should have answered by now."""
        return self.state == "running" and time.monotonic() - self.heard > _LOST_S


def holds(resources: Mapping[str, float], bundle: Mapping[str, float]) -> bool:
    """Return whether a node with these resources has room for a bundle."""
    return all(resources.get(name, 0) >= amount for name, amount in bundle.items())


def quoted(text: str) -> str:
    """Return a run or request in the form used in an actor's name."""
    return urllib.parse.quote(text, safe="")


def run_of(name: str) -> str:
    """Return the run in an actor's name."""
    return urllib.parse.unquote(name.removeprefix(PREFIX).split("/")[0])


def signal_words(code: int) -> str:
    """Describe how a job ended, if by a signal."""
    return f"ended by signal {-code}" if code < 0 else ""


def keeper_words(place: str, last_words: str) -> str:
    """Explain the end of a job whose keeper ended before it."""
    last_words = last_words.rpartition("\n")[2] or "it said nothing"
    if "No module named" in last_words:
        last_words += "; install ropewalk for the Python of Ray's nodes, or set the option python to one that has it"
    return f"its keeper {place} has ended: {last_words}"


def first_lines(error: Exception) -> str:
    """Return the beginning of a Ray error, which says what happened; the whole text is pages long."""
    return " ".join(line.strip() for line in str(error).splitlines()[:8] if line.strip())[:500]
