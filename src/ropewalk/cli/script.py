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
import sysconfig
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ropewalk.errors import EngineError, RopewalkError
from ropewalk.near_names import did_you_mean, near_names

_LIBRARIES = tuple({f"{sysconfig.get_path(kind)}{os.sep}" for kind in ("stdlib", "purelib", "platlib")})
"""The folders of Python's library and of installed packages."""


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
    path = os.path.abspath(file)
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
    _import_first_from(os.getcwd())
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
    return ScriptCode(code, spec.origin, argv0=spec.origin, import_folder=os.getcwd(), spec=spec)


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
    _import_first_from(program.import_folder)
    exec(program.code, module.__dict__)


def as_module(program: ScriptCode) -> types.ModuleType:
    """Run a program as a module with its file's name; code under `if __name__ == "__main__"` does not run.

    Its exceptions propagate.
    """
    module = types.ModuleType(os.path.splitext(os.path.basename(program.path))[0])
    module.__file__ = program.path
    sys.modules[module.__name__] = module
    _import_first_from(program.import_folder)
    exec(program.code, module.__dict__)
    return module


def function_of(named: str, what: str) -> Callable[..., Any]:
    """Return a function of a user's file, which runs as a module, not as `__main__`.

    Args:
        named: FILE.py:FUNCTION.
        what: words for the function in an error, such as "a model".

    Raises:
        NotAProgram: it is not named like that, or the file has no such function.
    """
    file, colon, name = named.rpartition(":")
    if not colon or not file:
        raise NotAProgram(f"{what} is named as FILE.py:FUNCTION, not {named!r}")
    module = as_module(load_file(file))
    found = getattr(module, name, None)
    if not callable(found):
        functions = [each for each, value in vars(module).items() if callable(value)]
        hint = did_you_mean(name, functions, quoted=False)
        raise NotAProgram(f"{file} has no function {name}{hint}")
    return found


def show_error(error: BaseException) -> None:
    """Print an error of the program as Python would, without the frames of this command.

    If the message of an error says enough, or the error comes from a library, the traceback ends at the program's line.
    """
    from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]

    traceback = _without_our_frames(error.__traceback__)
    if isinstance(error, RopewalkError | KeyboardInterrupt) or isinstance(error.__cause__, RemoteTraceback):
        traceback = _to_the_programs_line(traceback)
    if isinstance(error, EngineError):  # its message has the error of the cluster's client library
        error.__cause__, error.__suppress_context__ = None, True
    sys.stdout.flush()
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)


def _without_our_frames(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Return the traceback without our frames, which are above the program and, after a signal, below it."""
    if traceback is None:
        return None
    below = _without_our_frames(traceback.tb_next)
    if str(traceback.tb_frame.f_globals.get("__name__", "")).startswith("ropewalk.cli."):
        return below
    traceback.tb_next = below
    return traceback


def _to_the_programs_line(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Cut the frames of ropewalk, and of code it called, below the program; keep all if there are no others."""
    frames: list[types.TracebackType] = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    ours = [str(each.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == "ropewalk" for each in frames]
    if not frames or ours[0]:
        return frames[0] if frames else None
    # Frames below our last one may be the program's again: a callback, or a function that was passed to us.
    last = len(frames)
    while last > 1 and (ours[last - 1] or (any(ours[:last]) and _is_installed(frames[last - 1]))):
        last -= 1
    frames[last - 1].tb_next = None
    return frames[0]


def _is_installed(traceback: types.TracebackType) -> bool:
    """Return whether a frame is in Python's library or an installed package."""
    return traceback.tb_frame.f_code.co_filename.startswith((*_LIBRARIES, "<frozen"))


def _import_first_from(folder: str) -> None:
    if not sys.flags.safe_path:  # -P, -I and PYTHONSAFEPATH ask for no such place
        sys.path[0] = folder
