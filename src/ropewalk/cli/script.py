"""The user's file on the command line: functions that it has, and its errors as Python would show them."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
import types
from collections.abc import Callable
from typing import Any

from ropewalk.errors import EngineError, ProcessLimit, RopewalkError, SettingsError, StartFailed
from ropewalk.near_names import did_you_mean
from ropewalk.program.script_code import NotAProgram, ScriptCode, execute, import_first_from, load_file

_LIBRARIES = tuple({f"{sysconfig.get_path(kind)}{os.sep}" for kind in ("stdlib", "purelib", "platlib")})
"""The folders of Python's library and of installed packages."""
_SCRIPT_CODE = execute.__module__


def as_module(program: ScriptCode) -> types.ModuleType:
    """Run a program as a module with its file's name; code under `if __name__ == "__main__"` does not run.

    Its exceptions propagate.
    """
    module = types.ModuleType(os.path.splitext(os.path.basename(program.path))[0])
    module.__file__ = program.path
    sys.modules[module.__name__] = module
    import_first_from(program.import_folder)
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


def output_aside(as_json: bool) -> contextlib.AbstractContextManager[object]:
    """Send what the user's code prints to stderr if a command prints JSON, which stands alone on stdout then."""
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()


def flush_output() -> None:
    """Show what was printed before what is told on stderr; standard output may be closed, or nobody may read it."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()


def show_error(command: str, error: BaseException) -> None:
    """Print an error of the program: as Python would, without the frames of this command, or as one sentence.

    If the message of an error says enough, or the error comes from a library, the traceback ends at the program's line.
    An error of the configuration or of an engine is a sentence with that line: its message has what to change, and a
    traceback through the program would suggest that the program is wrong.

    Args:
        command: the command that ran the program.
        error: the error.
    """
    from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]

    traceback = _without_our_frames(error.__traceback__)
    if isinstance(error, RopewalkError | KeyboardInterrupt) or isinstance(error.__cause__, RemoteTraceback):
        traceback = _to_the_programs_line(traceback)
    flush_output()
    if _is_mistake(error):
        told = f"ropewalk {command}: {error}{_last_place(traceback)}"
        print(told, *getattr(error, "__notes__", []), sep="\n", file=sys.stderr)
    else:
        # As Python does: by that the end of the script is known for one by an error.
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, traceback
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)


def _is_mistake(error: BaseException) -> bool:
    """Return whether the configuration or an engine is to blame, and nothing else is to be shown of it.

    If no agent could be started, the message says why; a process whose own code failed has a cause to show.
    """
    if isinstance(error, StartFailed):
        return error.__cause__ is None or isinstance(error.__cause__, RopewalkError)
    return isinstance(error, EngineError | SettingsError | ProcessLimit)


def _last_place(traceback: types.TracebackType | None) -> str:
    """Return the file and line of the innermost frame, in brackets."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f" ({traceback.tb_frame.f_code.co_filename}, line {traceback.tb_lineno})" if traceback is not None else ""


def _without_our_frames(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Return the traceback without our frames, which are above the program and, after a signal, below it."""
    if traceback is None:
        return None
    below = _without_our_frames(traceback.tb_next)
    if str(traceback.tb_frame.f_globals.get("__name__", "")).startswith(("ropewalk.cli.", _SCRIPT_CODE)):
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
