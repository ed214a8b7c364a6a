"""`Script`: a Python file or module that runs as `__main__` in a process of a program, unchanged."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import dataclass
from types import CodeType

from ropewalk.errors import FailedForGood
from ropewalk.program.node_context import current_node
from ropewalk.program.script_code import NotAProgram, ScriptCode, execute, load_file, load_module


@dataclass(frozen=True, init=False)
class Script:
    """A script for the processes of a `RankGroup` or `Worker`, with its arguments, run as `python FILE ARGS` would.

    Its processes are forks of one in which the modules of `preload` are imported, so torch is loaded once for all.

    Example:
        >>> Script("train_ddp.py", "--epochs", "3")
        Script('train_ddp.py', '--epochs', '3')

    Args:
        file: path of a Python file, relative to the working folder; or, with `module`, the name of a module.
        *arguments: its command line.
        module: whether `file` is the name of a module, as after `python -m`.

    Raises:
        TypeError: `file` or an argument is not a string.
    """

    file: str
    arguments: tuple[str, ...]
    module: bool
    folder: str
    """The working folder in which the script was named."""

    def __init__(self, file: str | os.PathLike[str], *arguments: str, module: bool = False) -> None:
        named = os.fspath(file)
        wrong: list[object] = [each for each in (named, *arguments) if not isinstance(each, str)]  # pyright: ignore[reportUnnecessaryIsInstance]
        if wrong:
            raise TypeError(f"a script's name and arguments are strings, not {wrong[0]!r}")
        object.__setattr__(self, "file", named)
        object.__setattr__(self, "arguments", arguments)
        object.__setattr__(self, "module", module)
        object.__setattr__(self, "folder", os.getcwd())

    def __repr__(self) -> str:
        words = [repr(each) for each in (self.file, *self.arguments)]
        return f"Script({', '.join([*words, 'module=True'] if self.module else words)})"

    def __call__(self) -> None:
        """Run it as `__main__` of this process.

        Raises:
            FailedForGood: there is no such script on this host.
        """
        try:
            code = self._load()
        except NotAProgram as error:
            raise FailedForGood(
                f"{error}. This process runs in {os.getcwd()}; its host has the files of the project, and those of a "
                "shared file system"
            ) from None
        _find_modules_in(code.import_folder)
        runs = threading.Event()
        runs.set()
        if threading.current_thread() is threading.main_thread():
            current_node().on_stop(lambda: _terminate(runs))
        try:
            execute(code, self.arguments)
        finally:
            runs.clear()  # the end of a node counts as a request to end, too

    def code(self) -> CodeType | None:
        """The compiled file; None if it is a module, or cannot be read on this host."""
        try:
            return None if self.module else self._load().code
        except (NotAProgram, SyntaxError):
            return None

    def _load(self) -> ScriptCode:
        if self.module:
            _find_modules_in(os.getcwd())
            return load_module(self.file)
        # Relative to the working folder: on a host that was sent the project, that is the folder in its copy.
        near = os.path.relpath(os.path.join(self.folder, self.file), self.folder)
        return load_file(near if os.path.exists(near) else self.file)


def _terminate(runs: threading.Event) -> None:
    """Ask the script to end as `torchrun` does, by SIGTERM, which it may handle; it knows nothing of `rw.stopping`."""
    if runs.is_set():
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _find_modules_in(folder: str) -> None:
    """Make a folder the first of the import path: ours runs with `-P`, so `import_first_from` leaves it as it is."""
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path.insert(0, folder)
