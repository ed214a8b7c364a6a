"""What the driver knows of its jobs on Ray, their places and their names; and the words for what became of them."""

from __future__ import annotations

import dataclasses
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

#: Begins the names of our actors: PREFIX run / request / number.
PREFIX = "ropewalk-"
#: An actor that has not answered for this long is called lost.
_LOST_S = 4.0


@dataclasses.dataclass(eq=False)
class PlacementGroup:
    """A placement group: places for jobs of the same size. A place that a job left can be used again."""

    run: str
    bundle: dict[str, float]
    handle: Any
    places: list[RayJob | None]
    target: str = ""
    """The id of the node that was asked for, if one was."""


@dataclasses.dataclass(eq=False)
class RayJob:
    """One actor and what is known of its job."""

    name: str
    group: PlacementGroup
    actor: Any
    order: bytes
    """What starts it, with its secrets; forgotten when it is sent."""
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
        """Whether nothing of it runs any more, as far as Ray and its keeper know."""
        return self.state in ("ended", "lost")

    @property
    def is_silent(self) -> bool:
        """Whether it should have answered by now."""
        return self.state == "running" and time.monotonic() - self.heard > _LOST_S


def holds(resources: Mapping[str, float], bundle: Mapping[str, float]) -> bool:
    """Whether a node with these resources has room for a bundle."""
    return all(resources.get(name, 0) >= amount for name, amount in bundle.items())


def quoted(text: str) -> str:
    """A run or request as it stands in an actor's name."""
    return urllib.parse.quote(text, safe="")


def run_of(name: str) -> str:
    """The run that an actor's name tells."""
    return urllib.parse.unquote(name.removeprefix(PREFIX).split("/")[0])


def signal_words(code: int) -> str:
    """How a job ended, if by a signal."""
    return f"ended by signal {-code}" if code < 0 else ""


def keeper_words(place: str, last_words: str) -> str:
    """Why a job ended whose keeper has ended before it."""
    last_words = last_words.rpartition("\n")[2] or "it said nothing"
    if "No module named" in last_words:
        last_words += "; install ropewalk for the Python of Ray's nodes, or set the option python to one that has it"
    return f"its keeper {place} has ended: {last_words}"


def first_lines(error: Exception) -> str:
    """Ray's errors are pages long; what happened stands at the beginning."""
    return " ".join(line.strip() for line in str(error).splitlines()[:8] if line.strip())[:500]
