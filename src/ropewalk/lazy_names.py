"""Packages whose names are loaded at first use, with an install hint when a name needs an optional dependency.

    _lazy = LazyNames(globals(), {"torch": "torch"})

    with _lazy:
        from ropewalk.training.trainer import Trainer as Trainer

The statements in the block import nothing: each records a name and the module to import it from at first use. Type
checkers and readers see ordinary imports, `as` marks a name as public, and no second list repeats the names.

While the block runs, the imports of this package go through a function in place of `builtins.__import__`. One block
runs at a time and imports nothing, so that replaced functions are restored in reverse order. The alternatives were
measured: a block under `if TYPE_CHECKING`, or a stub beside the package as in the library lazy-loader, is parsed with
`ast` in each process and is missing from programs that are packed without sources; and `typing` alone takes three
quarters of the time that importing Ropewalk took.
"""

from __future__ import annotations

import _thread
import builtins
import importlib

_TYPE_CHECKING = False
if _TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


_one_at_a_time = _thread.allocate_lock()


class _NotedModule:
    """Stands for a module in the block, and has an attribute of every name."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> _Place:
        return _Place(self._module, name)


class _Place:
    """The module and the name to import."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class LazyNames:
    """The public names of a package; gives it `__getattr__`, `__dir__` and `__all__`.

    Args:
        package: `globals()` of the package.
        extras: optional third-party packages, each with the extra of ropewalk that installs it.
    """

    def __init__(self, package: dict[str, Any], extras: Mapping[str, str] | None = None) -> None:
        self._globals, self._extras = package, extras or {}
        self._package: str = package["__name__"]
        self._places: dict[str, _Place] = {}
        self._num_noted = 0
        self._is_noting = False
        self._note = self._noted  # one bound method, so that `is` recognises it
        package.update(__getattr__=self._get, __dir__=self._names, __all__=[])

    @property
    def homes(self) -> dict[str, str]:
        """The module of each name."""
        return {name: place.module for name, place in self._places.items()}

    def unlisted(self) -> _Unlisted:
        """Return a second block: its names are public too, but `from package import *` leaves them out."""
        return _Unlisted(self)

    def __enter__(self) -> None:
        _one_at_a_time.acquire()
        self._import = builtins.__import__
        self._is_noting = True
        builtins.__import__ = self._note

    def __exit__(self, *error: object) -> None:
        self._globals["__all__"] += self._leave(error)

    def _leave(self, error: tuple[object, ...]) -> list[str]:
        self._is_noting = False
        if builtins.__import__ is self._note:  # otherwise another function has replaced it, and calls this one
            builtins.__import__ = self._import
        _one_at_a_time.release()
        found = {name: value for name, value in self._globals.items() if isinstance(value, _Place)}
        for name in found:
            del self._globals[name]
        if (not any(error) and len(found) != self._num_noted) or found.keys() & self._places.keys():
            raise ImportError(f"{self._package} names something twice, among {', '.join(found)}")
        self._places |= found
        self._num_noted = 0
        return sorted(found)

    def _noted(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:  # the signature of `__import__`
        if not self._is_noting or globals is not self._globals:  # an import of another module, in another thread
            return self._import(name, globals, locals, fromlist, level)
        if not fromlist or "*" in fromlist or level:
            raise ImportError(f"in this block of {self._package}, names are imported as in: from {name} import A as A")
        self._num_noted += len(fromlist)
        return _NotedModule(name)

    def _get(self, name: str) -> Any:
        place = self._places.get(name)
        if place is None:
            known = ", ".join(self._names())
            raise AttributeError(f"module {self._package!r} has no attribute {name!r}; it has {known}")
        try:
            if place.module == self._package:
                value = importlib.import_module(f"{place.module}.{place.name}")
            else:
                value = getattr(importlib.import_module(place.module), place.name)
        except ModuleNotFoundError as error:
            extra = self._extras.get(error.name or "")
            if extra is None:
                raise
            install = f"pip install 'ropewalk[{extra}]'"
            raise ModuleNotFoundError(
                f"{self._package}.{name} needs {error.name}: {install}", name=error.name
            ) from error
        self._globals[name] = value
        return value

    def _names(self) -> list[str]:
        return sorted(self._places)


class _Unlisted:
    def __init__(self, names: LazyNames) -> None:
        self._names = names

    def __enter__(self) -> None:
        self._names.__enter__()

    def __exit__(self, *error: object) -> None:
        self._names._leave(error)  # pyright: ignore[reportPrivateUsage]
