"""Whether a saved state is of the problem that an algorithm was made for."""

from __future__ import annotations

from typing import Any


def check_same_problem(here: dict[str, Any], saved: dict[str, Any]) -> None:
    """Compare the facts that a state must agree with, by name.

    Raises:
        ValueError: one differs; says which, and both values.
    """
    for name in here | saved:
        if here.get(name) != saved.get(name):
            raise ValueError(
                f"the saved state has {name} = {saved.get(name)!r}, and this algorithm {here.get(name)!r}; construct "
                "it with the arguments of the run that was saved"
            )
