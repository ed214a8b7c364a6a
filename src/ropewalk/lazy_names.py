"""Packages whose names are loaded when they are first used, and that say what to install when a part needs more."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], extras: Mapping[str, str], submodules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package.

    Args:
        package: its `__name__`.
        homes: names with the modules they live in, relative to the package.
        extras: packages from outside that parts of it need, each with the extra of ropewalk that brings it.
        submodules: those that are public themselves.
    """

    def get(name: str) -> Any:
        home = name if name in submodules else homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(f"{package}.{home}")
        except ModuleNotFoundError as error:
            extra = extras.get(error.name or "")
            if extra is None:
                raise
            install = f"pip install 'ropewalk[{extra}]'"
            raise ModuleNotFoundError(f"{package}.{name} needs {error.name}: {install}", name=error.name) from error
        value = module if name in submodules else getattr(module, name)
        vars(sys.modules[package])[name] = value
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes, *submodules})

    return get, names
