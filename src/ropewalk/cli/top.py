"""`ropewalk top`: what runs now, in a terminal: programs, pools and trainers, with the processes of the chosen one."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Annotated, Protocol

import typer
from rich.console import Console
from rich.live import Live

from ropewalk.cli.keyboard import Keyboard
from ropewalk.cli.top_choice import Ask, Leave, TopChoice, sorted_things
from ropewalk.cli.top_screen import listing, screen, to_json
from ropewalk.errors import RopewalkError
from ropewalk.page.watcher import Source, Watcher

_CLIENT = "top"
_DRAW_S = 1.0
_BETWEEN_LOOKS_S = 1.0
"""Seconds between the two looks of `--once`: one look has no rates."""


class ActingSource(Source, Protocol):
    """A source that can also ask a thing to do something."""

    def act(self, id: str, action: str, process: str) -> str:
        """Ask for an action.

        Args:
            id: of the thing.
            action: of `View.actions` or `View.process_actions`.
            process: its name; "" for the whole thing.

        Returns:
            What it has led to.

        Raises:
            RopewalkError: it was refused, or the launcher does not answer.
        """
        ...


def top(
    once: Annotated[bool, typer.Option("--once", help="Print everything once, after two looks, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
) -> None:
    """Show what runs now, and go on showing it: rates, CPU, memory, silence and failures of each process.

    Keys: up and down choose, enter goes to the processes of the chosen one and escape back, s sorts, k kills a process
    or stops what is chosen, after a question, and q ends. Without a terminal, everything is printed once.

    Exit code 1 if something does not answer, 130 after Ctrl-C.
    """
    source = _source()
    console = Console(highlight=False)
    if once or as_json or not console.is_terminal or console.is_dumb_terminal or not sys.stdin.isatty():
        raise typer.Exit(print_once(source, as_json=as_json))
    try:
        show(source, console)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def print_once(source: Source, *, as_json: bool, wait: Callable[[float], object] = time.sleep) -> int:
    """Look twice, print everything, and return the exit code.

    Args:
        source: what runs.
        as_json: print JSON.
        wait: waits between the looks.
    """
    watcher = Watcher(source)
    watcher.look()
    if watcher.things():
        wait(_BETWEEN_LOOKS_S)
        watcher.look()
    things = watcher.things()
    if as_json:
        typer.echo(json.dumps(to_json(things), indent=2))
    else:
        typer.echo(listing(things) or "nothing runs for this user on this machine")
    return 1 if any(seen.problem for seen in things) else 0


def show(source: ActingSource, console: Console) -> None:
    """Show what runs in a terminal until `q` or Ctrl-C."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:  # a name that the terminal's encoding lacks must not end the command
        reconfigure(errors="replace")
    watcher, choice = Watcher(source), TopChoice()
    watcher.start()
    watcher.want(_CLIENT)
    try:
        with Keyboard(sys.stdin.fileno()) as keyboard, Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                things = _settled(watcher, choice)
                looked = watcher.num_looks > 0
                live.update(screen(things, choice, console.size, time.time(), looked=looked), refresh=True)
                for key in keyboard.read(_DRAW_S if looked else 0.1):
                    match choice.pressed(key, _settled(watcher, choice)):
                        case Leave():
                            return
                        case Ask() as ask:
                            _begin(source, ask, choice)
                        case None:
                            pass
    except EOFError:  # the terminal is gone, and with it whoever looked
        return
    finally:
        watcher.close()


def _settled(watcher: Watcher, choice: TopChoice):
    things = sorted_things(watcher.things(), choice.sort)
    choice.settle(things)
    return things


def _begin(source: ActingSource, ask: Ask, choice: TopChoice) -> None:
    """Ask for an action in a thread: a launcher may take seconds to answer, and keys go on working."""
    what = f"{ask.action} {ask.process}".strip()
    choice.message = f"{what}: asked"

    def act() -> None:
        try:
            answer = source.act(ask.id, ask.action, ask.process)
        except (RopewalkError, OSError, ValueError) as error:
            answer = f"not done: {error}"
        choice.message = f"{what}: {answer}"

    threading.Thread(target=act, name="ropewalk-top-action", daemon=True).start()
