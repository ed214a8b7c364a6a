"""`Constraints`: which configurations may be tried, and what to say if none may."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ropewalk.errors import SearchInvalid
from ropewalk.near_names import instead_of
from ropewalk.search.expressions import Expression

Constraint = Callable[[Mapping[str, Any]], bool]
"""Says of a nested configuration whether it may be tried."""


class Constraints:
    """The constraints of a space.

    Args:
        constraints: functions of the nested configuration, and texts, which become `Expression`s.
        known: dotted names of the hyperparameters.

    Raises:
        SearchInvalid: one is neither a function nor an expression, or an expression has an unknown name.
    """

    def __init__(self, constraints: Sequence[Constraint | str], known: Iterable[str]) -> None:
        if isinstance(constraints, str) or callable(constraints):
            raise SearchInvalid(f"constraints are a list of functions and texts, not {constraints!r}; put it in a list")
        self._constraints = [Expression(each) if isinstance(each, str) else each for each in constraints]
        names = list(known)
        for each in self._constraints:
            _check(each, names)

    def __len__(self) -> int:
        return len(self._constraints)

    @property
    def names(self) -> list[str]:
        """The texts of expressions and the names of functions, for messages."""
        return [_name(each, number) for number, each in enumerate(self._constraints, 1)]

    @property
    def expressions(self) -> list[str]:
        """The texts of those that are expressions."""
        return [each.text for each in self._constraints if isinstance(each, Expression)]

    def broken(self, arguments: Mapping[str, Any]) -> Iterator[str]:
        """Yield the names of those that a nested configuration does not satisfy.

        Raises:
            SearchInvalid: one raises an exception; the message has the configuration.
        """
        for number, each in enumerate(self._constraints, 1):
            try:
                holds = each(arguments)
            except SearchInvalid:
                raise
            except Exception as error:  # of the user's function: its name and the values are needed to correct it
                raise SearchInvalid(
                    f"{_name(each, number)} raised {type(error).__name__}: {error} for {arguments}; hyperparameters "
                    "that are not active are absent: use .get"
                ) from error
            if not holds:
                yield _name(each, number)

    def admitting_nothing(self, configurations: Iterable[Mapping[str, Any]], are_all: bool) -> SearchInvalid:
        """Return the error of a space whose constraints admit nothing.

        Args:
            configurations: nested configurations of which none is admitted.
            are_all: whether these are all that there are, and not only drawn ones.
        """
        broken = [set(self.broken(each)) for each in configurations]
        shares = ", ".join(
            f"{name} admits {sum(name not in each for each in broken) / len(broken):.1%}" for name in self.names
        )
        which = f"the {len(broken):,} configurations" if are_all else f"{len(broken):,} configurations that were drawn"
        return SearchInvalid(f"the constraints admit none of {which}: {shares}; relax a constraint or widen a bound")


def _check(constraint: object, known: Sequence[str]) -> None:
    if not callable(constraint):
        raise SearchInvalid(f"a constraint is a function of the nested configuration or a text, not {constraint!r}")
    if not isinstance(constraint, Expression):
        return
    for name in constraint.names:
        if name not in known:
            raise SearchInvalid(
                f"the constraint {constraint.text!r} names {name!r}, which is not in the space"
                f"{instead_of(name, known)}",
                parameter=name,
            )


def _name(constraint: Constraint, number: int) -> str:
    if isinstance(constraint, Expression):
        return repr(constraint.text)
    name = getattr(constraint, "__name__", type(constraint).__name__)
    return f"constraint {number}" if name == "<lambda>" else name
