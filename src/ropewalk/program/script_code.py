"""Runs a user's program as `__main__` in this process, the way `python FILE` and `python -m MODULE` run it.

The program's code is in the real `sys.modules["__main__"]`: Ropewalk pickles its definitions by value, and pickle finds
its classes there. `runpy` is not used, because it restores the old `__main__` (and clears the new one) while the
program's threads and exit handlers may still need it, and because its frames are in every traceback.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from ropewalk.near_names import near_names


class NotAProgram(Exception):
    """A file or module cannot be run; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class ScriptCode:
    """Code that is ready to run as `__main__`."""

    code: types.CodeType
    path: str
    """The absolute path of the source, for `__file__`."""
    argv0: str
    """The value of `sys.argv[0]`."""
    import_folder: str
    """The value of `sys.path[0]`."""
    spec: importlib.machinery.ModuleSpec | None = None
    """The import system's spec; only a program started with `-m` has one, as under `python -m`."""


def load_file(file: str) -> ScriptCode:
    """Read and compile a file.

    Raises:
        NotAProgram: there is no such file, or it is not Python.
        SyntaxError: it is a `.py` file with a syntax error; shown as Python shows it.
    """
    if not file:
        raise NotAProgram("the name of the file is empty")
    path = os.path.normpath(file if os.path.isabs(file) else os.path.join(_current_folder(), file))
    if os.path.isdir(path):
        raise NotAProgram(f"{file} is a folder; name the Python file in it, or use -m for a package")
    try:
        with open(path, "rb") as stream:
            source = stream.read()
    except FileNotFoundError:
        raise NotAProgram(f"there is no file {file}{_near_file(file)}") from None
    except OSError as error:
        raise NotAProgram(f"{file} cannot be read: {error.strerror}") from None
    if b"\0" in source:
        raise NotAProgram(f"{file} is not Python source: it holds binary data")
    try:
        code = compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        if path.endswith(".py"):
            raise
        place = f" (line {error.lineno}: {error.msg})" if error.lineno else f" ({error.msg})"
        raise NotAProgram(f"{file} is not Python source{place}") from None
    return ScriptCode(code, path, argv0=file, import_folder=os.path.dirname(os.path.realpath(path)))


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise NotAProgram(
            "the current folder was removed; go to another one, or name a file by its whole path"
        ) from None


def _near_file(file: str) -> str:
    folder, name = os.path.split(file)
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return f"; there is no folder {folder} either" if not os.path.isdir(folder) else ""
    near = near_names(name, names)
    return f"; did you mean {os.path.join(folder, near[0])}?" if near else ""


def load_module(name: str) -> ScriptCode:
    """Find the module that `python -m NAME` would run, and import its parent packages.

    Raises:
        NotAProgram: there is no such module, or it has no Python source or byte code.
    """
    if name.endswith(".py") and os.path.exists(name):  # a lookup of "train.py" would import "train", and so run it
        raise NotAProgram(f"-m takes a module's name without .py; leave -m away to run the file {name}")
    import_first_from(_current_folder())
    wanted = name
    while True:
        try:
            spec = importlib.util.find_spec(wanted)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{wanted}.".startswith(f"{error.name}."):
                raise  # a parent package was found, but imports something that is missing
            spec = None
        except ValueError:  # a relative or malformed name
            spec = None
        if spec is None:
            raise NotAProgram(_no_module(name, wanted))
        if spec.submodule_search_locations is None:
            break
        wanted += ".__main__"
    # Loaders are a protocol of the import system without a type that has get_code.
    get_code = cast(Any, getattr(spec.loader, "get_code", None))
    code = get_code(wanted) if get_code else None
    if code is None or spec.origin is None:
        raise NotAProgram(f"module {name} has no Python code to run")
    return ScriptCode(code, spec.origin, argv0=spec.origin, import_folder=_current_folder(), spec=spec)


def _no_module(name: str, wanted: str) -> str:
    if wanted != name:
        return f"{name} is a package without a __main__ module, so it cannot be run"
    return f"there is no module {name}; it is looked for in the current folder and in the installed packages"


def execute(program: ScriptCode, arguments: Sequence[str]) -> None:
    """Run a program as `__main__`; its exceptions propagate."""
    module = types.ModuleType("__main__")
    module.__file__ = program.path
    module.__spec__ = program.spec
    module.__loader__ = (
        program.spec.loader if program.spec else importlib.machinery.SourceFileLoader("__main__", program.path)
    )
    module.__package__ = program.spec.parent if program.spec else None
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module  # stays: threads and exit handlers of the program need it to the end
    sys.argv[:] = [program.argv0, *arguments]
    import_first_from(program.import_folder)
    exec(program.code, module.__dict__)


def import_first_from(folder: str) -> None:
    """Make a folder the first entry of the import path, as Python does with a script's."""
    if not sys.flags.safe_path:  # -P, -I and PYTHONSAFEPATH ask for no such place
        sys.path[0] = folder
