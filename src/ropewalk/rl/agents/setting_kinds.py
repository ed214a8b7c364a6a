"""What a setting of an agent may be, by the type that its class declares: another one is refused where it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field
from numbers import Integral, Real
from types import NoneType
from typing import Any

from ropewalk.argument_kinds import check_kind
from ropewalk.rl.schedules import LinearSchedule

_KINDS: Mapping[str, tuple[Any, str]] = {
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "bool": (bool, "True or False"),
    "None": (NoneType, "None"),
    "LinearSchedule": (
        LinearSchedule,
        "rl.LinearSchedule(start, end, until), a function of the share of the steps that is done",
    ),
    "OptimizerFactory": (Callable, "rl.TorchAdam(1e-3) or a function of the parameters"),
}
"""By the name of a type, what its values are, and an example of one."""


def check_kinds(of: str, given: Mapping[str, Any], fields: Iterable[Field[Any]]) -> None:
    """Refuse settings of another type than their class declares; those of types that are not known here pass.

    Args:
        of: what they are settings of.
        given: the settings that were given.
        fields: fields of the class.

    Raises:
        TypeError: the first one of another type, and an example of what to give.
    """
    for field in fields:
        declared: Any = field.type
        names = declared.split(" | ") if isinstance(declared, str) else [getattr(declared, "__name__", "")]
        if field.name in given and all(name in _KINDS for name in names):
            kind, example = _KINDS[names[0]]
            for name in names[1:]:
                kind, example = kind | _KINDS[name][0], f"{example}, or {_KINDS[name][1]}"
            check_kind(f"{of}: {field.name}", given[field.name], kind, example, required="None" not in names)


__all__ = ["check_kinds"]
