"""Facts about the problem and algorithm of a saved state, which have to agree before it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def check_identity(saved: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Compare the facts of a saved state with those of the object that loads it.

    Raises:
        ValueError: some differ; the message names each with both values.
    """
    differing = [name for name in {**here, **saved} if saved.get(name) != here.get(name)]
    if differing:
        facts = ", ".join(f"{name} {saved.get(name)!r} there and {here.get(name)!r} here" for name in differing)
        raise ValueError(
            f"this state is of another problem or algorithm: {facts}; construct it with the arguments of the run that "
            "saved the state, or begin without it"
        )
