"""`ropewalk run --ranks N`: the script itself is the program, in N processes, as under `torchrun`.

It is a program of one `RankGroup`; nothing here is more than its command line.
"""

from __future__ import annotations

import math
import re
import sys
import types
from collections.abc import Sequence

import ropewalk
from ropewalk.cli.script import flush_output
from ropewalk.escaping import escaped_lines
from ropewalk.program.preloading import preload_of
from ropewalk.program.program import Program
from ropewalk.program.script import Script
from ropewalk.program.script_code import ScriptCode, import_first_from


class RanksRefused(Exception):
    """The ranks could not be launched."""


def parse_ranks(text: str) -> tuple[int, int]:
    """Parse the value of `--ranks`: "4", or "2:4" for the least and the greatest number.

    Raises:
        ValueError: it is neither.
    """
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text, re.ASCII)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most:
        raise ValueError(
            f"--ranks takes a number of ranks, as in 4, or the least and the greatest one, as in 2:4, not {text!r}"
        )
    return least, most


def advice_for_torchrun(option: str, command: str) -> str:
    """Return what to say instead of an option of `torchrun`, or "" for any other option."""
    name = option.lstrip("-").replace("_", "-")
    if name == "nproc-per-node":
        return f"{option} is an option of torchrun; give the number of all ranks: ropewalk {command} --ranks 2 FILE"
    if name in _OF_TORCHRUN:
        return (
            f"{option} is an option of torchrun, which is not needed: the engine finds the hosts and the address; give "
            f"the number of all ranks, as in ropewalk {command} --ranks 8 --engine slurm FILE"
        )
    return ""


_OF_TORCHRUN = {
    *("nnodes", "node-rank", "standalone", "master-addr", "master-port", "local-addr"),
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"),
}
"""Options of torchrun that say which hosts there are, and how they meet."""


def run_ranks(named: str, code: ScriptCode, arguments: Sequence[str], ranks: tuple[int, int], max_restarts: int) -> int:
    """Run a script in several processes, and return the exit code: that of the rank that failed first, or 0.

    Args:
        named: the file or module, as on the command line.
        code: the same, compiled.
        arguments: its command line.
        ranks: the least and the greatest number of processes.
        max_restarts: how often all of them start again after one has failed.

    Raises:
        RanksRefused: the program cannot be launched; the message says why.
    """
    _stand_for(code)
    script = Script(named, *arguments, module=code.spec is not None)
    name = re.sub(r"[^A-Za-z0-9_]", "_", code.path.rpartition("/")[2].removesuffix(".py"))
    program = Program(name)
    program.add(
        ropewalk.RankGroup(script, ranks),
        name=name,
        restart=ropewalk.Restart("on_failure", max_restarts=max_restarts, window_s=math.inf),
        preload=preload_of(code.code),
    )
    try:
        with program.launch() as running:
            try:
                running.wait()
            except KeyboardInterrupt:
                running.stop()  # with the whole grace: scripts save their state when they are asked to end
                raise
    except ropewalk.ProgramFailed as error:
        _show(error)
        return error.exit_code
    except (ropewalk.RopewalkError, OSError) as error:
        raise RanksRefused(str(error)) from None
    return 0


def _stand_for(code: ScriptCode) -> None:
    """Make this process look as if it ran the script: by that the project and the import path are found."""
    main = types.ModuleType("__main__")
    main.__file__ = code.path
    sys.modules["__main__"] = main
    import_first_from(code.import_folder)


def _show(error: ropewalk.ProgramFailed) -> None:
    cause = error.__cause__
    traceback = (
        str(cause.__cause__ or "").strip().strip('"').strip() if cause and not isinstance(cause, SystemExit) else ""
    )
    flush_output()
    for words in [traceback, f"ropewalk run: {error}"] if traceback else [f"ropewalk run: {error}"]:
        print(escaped_lines(words), file=sys.stderr)
