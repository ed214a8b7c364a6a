"""`ropewalk run`: run a script as `python FILE` would, with an engine, a number of workers and two-step signals.

The first SIGINT or SIGTERM raises KeyboardInterrupt in the script, whose `with` blocks clean up. The second one kills
all processes at once, unless it is a SIGTERM that was sent with the first (`interrupts.EndSignals`).
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import click
from click.globals import pop_context, push_context

from ropewalk.cli import placing, script
from ropewalk.cli.command_line import PanelCommand, failure
from ropewalk.cli.dry_run import describe_jobs
from ropewalk.cli.ranks import RanksRefused, advice_for_torchrun, parse_ranks, run_ranks
from ropewalk.errors import CodeRefused, EngineError, SettingsError
from ropewalk.escaping import escaped_lines
from ropewalk.processes import interrupts
from ropewalk.program.script_code import NotAProgram, ScriptCode, execute, load_file, load_module
from ropewalk.settings import Settings
from ropewalk.tracking.begun_runs import take_begun_runs

# How long the second signal waits for the processes to be killed. If the interrupted code holds a lock that this
# needs, the agents end by themselves as soon as this process is gone.
_KILL_TIMEOUT_S = 2.0


class RunCommand(PanelCommand):
    """The command line of `run` and `submit`; detects a common mistake: an option of the script before the `--`."""

    prints_any_letter = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        name = str(ctx.info_name)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            option = error.option_name
            advice = advice_for_torchrun(option, name) or (
                f"there is no option {option} of ropewalk {name}; options of the script go after --, as in "
                f"ropewalk {name} FILE -- {option} ... (see ropewalk {name} --help)"
            )
            raise failure(advice) from None
        except click.BadOptionUsage as error:
            if "requires an argument" not in error.message:
                raise
            option = error.option_name
            advice = (
                f"{option} of ropewalk {name} needs a value; an option of the script with this name stands behind --, "
                f"as in ropewalk {name} FILE -- {option}"
            )
            raise failure(advice) from None


@click.command(cls=RunCommand)
@placing.script_options
@click.option("--page", is_flag=True, help="Serve the page, as `ropewalk page` does.")
def run(
    file: str | None,
    arguments: tuple[str, ...],
    module: str | None,
    ranks: str | None,
    max_restarts: int | None,
    dry_run: bool,
    page: bool,
    **where: Any,
) -> None:
    """Run a Python script whose pools and programs use the engine, number of workers and mode given here.

    Arguments after `--` are passed to the script:

        ropewalk run train.py --workers 4 -- --seed 7

    With `--ranks` the script itself runs in several processes, unchanged from `torchrun`:

        ropewalk run --ranks 4 --max-restarts 3 train_ddp.py -- --epochs 10

    Ctrl-C asks the script to stop; a second Ctrl-C kills everything at once.
    """
    given = list(arguments)
    if module is not None and file is not None:
        given.insert(0, file)  # with -m there is no file: the word is the script's first argument
    placed = placing.place_or_refuse(**where)
    os.environ.update(placed.variables)
    take_begun_runs(os.environ)
    bounds = bounds_or_refuse(ranks, max_restarts)
    if dry_run:
        show_dry_run(placed.settings, file if module is None else None, bounds and bounds[1])
        return

    signals = Signals()
    try:
        program = _load(file, module)
        signals.install()
        if page:
            _open_page()
        if bounds is None:
            with _outside_this_command():
                execute(program, given)
        elif exit_code := run_ranks(str(module or file), program, given, bounds, max_restarts or 0):
            raise SystemExit(exit_code)
    except (NotAProgram, RanksRefused, PageRefused) as error:
        raise failure(str(error)) from None
    except SystemExit:
        raise  # the script's own exit code is ours
    except KeyboardInterrupt as error:
        if bounds is None:  # with ranks, no code of the script runs in this process
            script.show_error("run", error)
        raise SystemExit(signals.exit_code) from None
    except BaseException as error:
        script.show_error("run", error)
        raise SystemExit(1) from None


def _load(file: str | None, module: str | None) -> ScriptCode:
    if module is not None:
        return load_module(module)
    if file is not None:
        return load_file(file)
    raise NotAProgram("name a file to run, or a module with -m; see ropewalk run --help")


@contextlib.contextmanager
def _outside_this_command() -> Generator[None]:
    """Hide this command from a script that uses click: as under `python FILE`, no command is around its own."""
    hidden: list[click.Context] = []
    while (context := click.get_current_context(silent=True)) is not None:
        hidden.append(context)
        pop_context()
    try:
        yield
    finally:
        for context in reversed(hidden):
            push_context(context)


class PageRefused(Exception):
    """The page that `--page` asks for cannot be opened."""


def _open_page() -> None:
    from ropewalk.page.opening import PageFailed, page

    try:
        page()
    except PageFailed as error:
        raise PageRefused(str(error)) from None


def bounds_or_refuse(ranks: str | None, max_restarts: int | None) -> tuple[int, int] | None:
    """Return the bounds in `--ranks`, or None without it; a mistake ends the command."""
    if ranks is None and max_restarts is not None:
        raise failure("--max-restarts is for ranks of a script; give their number, as in --ranks 4")
    try:
        return None if ranks is None else parse_ranks(ranks)
    except ValueError as error:
        raise failure(str(error)) from None


def show_dry_run(chosen: Settings, file: str | None, num_ranks: int | None = None) -> None:
    """Print the requests to the engine for a script, without running it."""
    workers = str(num_ranks or os.environ.get("ROPEWALK_WORKERS", ""))
    try:
        path = None if file is None else Path(load_file(file).path)
        for line in describe_jobs(chosen, int(workers) if workers.isdecimal() else None, path):
            click.echo(escaped_lines(line))
    except (NotAProgram, EngineError, SettingsError, CodeRefused) as error:
        raise failure(str(error)) from None


class Signals:
    """Signal handlers: the first signal interrupts the script, the second kills all processes."""

    def __init__(self) -> None:
        self._received: int | None = None
        self._signals = interrupts.EndSignals()
        self._before: dict[int, Any] = {}  # a signal's handler, in one of the many types the signal module has
        self._forking = threading.local()  # a signal mask belongs to a thread

    @property
    def exit_code(self) -> int:
        """Return the exit code that a shell reports for a program that this signal ended; 130 for Ctrl-C."""
        return 128 + (self._received or signal.SIGINT)

    def install(self) -> None:
        """Handle SIGINT and SIGTERM, unless the parent process has them ignored (nohup, `&` in a script)."""
        interrupts.telling_handlers.append(self._handle)
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        # A forked child is not a launcher: `Process.terminate` expects SIGTERM to end it. Signals are blocked until the
        # child has its own handlers, because Python drops signals that arrive while a child is starting.
        os.register_at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._restore)

    def _hold(self) -> None:
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._before)

    def _release(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
        self._release()

    def _handle(self, number: int, _: types.FrameType | None) -> None:
        if self._signals.is_copy(number):
            return
        if self._received is not None:
            _say("killing everything")
            kill_all_and_exit(128 + number)
        self._received = number
        name, again = ("Ctrl-C", "press it again") if number == signal.SIGINT else ("SIGTERM", "send it again")
        _say_beside_display(f"{name} received, stopping; {again} to kill everything at once")
        interrupts.tell_of_interrupt()
        raise KeyboardInterrupt


def _say(message: str) -> None:
    # Not through Python's own sys.stderr: the signal may have interrupted a write, which is not reentrant.
    with contextlib.suppress(OSError):
        os.write(2, f"\nropewalk: {message}\n".encode())


def _say_beside_display(message: str) -> None:
    """Print through the object that replaced sys.stderr, if any: a live display would overwrite other output."""
    if sys.stderr is sys.__stderr__:
        _say(message)
        return
    try:
        print(f"ropewalk: {message}", file=sys.stderr, flush=True)
    except Exception:  # the script's object may raise anything in the middle of a write; the message is still printed
        _say(message)


def kill_all_and_exit(code: int) -> None:
    """Kill every process of every session, then this one, without any cleanup."""
    session = sys.modules.get("ropewalk.processes.open_sessions")  # not loaded: then there is nothing to kill
    if session is not None:
        kill_all = cast(Callable[[], None], session.kill_all)
        done = _thread.allocate_lock()
        done.acquire()

        def kill() -> None:
            try:
                kill_all()
            finally:
                done.release()

        # In a thread, so that a lock held by the interrupted code cannot block this for ever. Not through `threading`,
        # whose own lock may be held.
        _thread.start_new_thread(kill, ())
        done.acquire(timeout=_KILL_TIMEOUT_S)
    os._exit(code)
