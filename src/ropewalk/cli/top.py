"""`ropewalk top`: what runs now, in a terminal: programs, pools and trainers, with the processes of the chosen one."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping

import click
from click.exceptions import Exit
from rich.console import Console
from rich.live import Live

from ropewalk.cli.choosing import telling_failures
from ropewalk.cli.command_line import PanelCommand
from ropewalk.cli.keyboard import Keyboard
from ropewalk.cli.top_choice import AskedAction, Leave, TopChoice, sorted_things
from ropewalk.cli.top_screen import NOTHING_RUNS, listing, screen, to_json
from ropewalk.escaping import escaped
from ropewalk.page.actions import ActionFailed, Actor
from ropewalk.page.source import Launchers
from ropewalk.page.watcher import LookResult, Seen, Source, Watcher
from ropewalk.progress_stream import is_terminal
from ropewalk.quantities import counted

_CLIENT = "top"
_DRAW_S = 1.0
_LATE_S = 5.0
"""Seconds without a look after which the screen says how old it is."""
_BETWEEN_LOOKS_S = 1.0
"""Seconds between the two looks of `--once`: one look has no rates."""
_MOST_LOOKS = 5
"""Looks of `--once` at a launcher that is slow to answer."""


@click.command(cls=PanelCommand)
@click.option("--once", is_flag=True, help="Measure twice, print everything once, and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
def top(once: bool, as_json: bool) -> None:
    """Show what runs and keep the view up to date: rates, CPU, memory, silence and failures of each process.

    Keys: up and down select, enter shows the processes of the selected entry, escape goes back, s sorts, k kills
    the selected process or stops the selected entry after asking, and q quits. Without a terminal, everything is
    printed once.

    Exit code 1 if something does not answer, 130 after Ctrl-C.
    """
    show_what_runs(once=once, as_json=as_json)


def show_what_runs(*, once: bool = False, as_json: bool = False) -> None:
    """Do as `ropewalk top` does, with its options."""
    console = Console(highlight=False)
    with telling_failures(), Launchers() as launchers:
        if once or as_json or not console.is_terminal or console.is_dumb_terminal or not is_terminal(sys.stdin):
            raise Exit(print_once(launchers, as_json=as_json))
        show(launchers, launchers, console)


class _NotingSource:
    """A source that notes how many things have not answered the last look yet."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.num_unanswered: int = 0

    def look(self, panels: Mapping[str, dict[str, int]]) -> list[LookResult]:
        looks = self._source.look(panels)
        self.num_unanswered = sum(look.view is None and not look.problem for look in looks)
        return looks


def print_once(source: Source, *, as_json: bool, wait: Callable[[float], object] = time.sleep) -> int:
    """Look twice, print everything, and return the exit code.

    Args:
        source: what runs.
        as_json: print JSON.
        wait: waits between the looks.
    """
    noting = _NotingSource(source)
    watcher = Watcher(noting)
    watcher.look()
    while (watcher.things() or noting.num_unanswered) and watcher.num_looks < _MOST_LOOKS:
        wait(_BETWEEN_LOOKS_S)
        watcher.look()
        if not noting.num_unanswered:
            break
    things = [seen for seen in watcher.things() if not seen.gone]
    late, problems = noting.num_unanswered, watcher.problems()
    nothing = f"no answer from {counted(late, 'launcher')}; `ropewalk ps` says why" if late else NOTHING_RUNS
    nothing = "\n".join(map(escaped, problems)) or nothing
    click.echo(json.dumps(to_json(things), indent=2) if as_json else listing(things) or nothing)
    return 1 if late or problems or any(seen.problem for seen in things) else 0


def show(source: Source, actor: Actor, console: Console) -> None:
    """Show what runs in a terminal until `q` or Ctrl-C.

    Args:
        source: what runs.
        actor: acts on it.
        console: of the terminal, whose keys are those of standard input.
    """
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:  # a name with letters that the terminal's encoding lacks must not end the command
        reconfigure(errors="replace")
    watcher, choice, looks = Watcher(source), TopChoice(), _Looks()
    watcher.start()
    try:
        with Keyboard(sys.stdin.fileno()) as keyboard, Live(console=console, auto_refresh=False, screen=True) as live:
            while _step(watcher, looks, choice, actor, keyboard, live):
                pass
    except EOFError:  # the terminal is gone, and with it whoever looked
        pass
    finally:
        watcher.close()


class _Looks:
    """Notices that looks do not come any more; the numbers on the screen are old then."""

    def __init__(self) -> None:
        self._num, self._at = 0, time.monotonic()

    def late_s(self, num: int) -> float:
        """Return for how many seconds there was no look, if that is remarkable.

        Args:
            num: number of looks until now.
        """
        if num != self._num:
            self._num, self._at = num, time.monotonic()
        passed_s = time.monotonic() - self._at
        return passed_s if passed_s > _LATE_S else 0.0


def _step(watcher: Watcher, looks: _Looks, choice: TopChoice, actor: Actor, keyboard: Keyboard, live: Live) -> bool:
    """Draw once, and take the keys of the next second; returns whether to go on."""
    watcher.want(_CLIENT)  # which holds for ten seconds
    things, looked = _settled(watcher, choice), watcher.num_looks > 0
    late_s = looks.late_s(watcher.num_looks)
    drawn = screen(things, choice, live.console.size, time.time(), looked=looked, late_s=late_s)
    live.update(drawn, refresh=True)
    for key in keyboard.read(_DRAW_S if looked else 0.1):
        match choice.pressed(key, _settled(watcher, choice)):
            case Leave():
                return False
            case AskedAction() as ask:
                _begin(actor, ask, choice)
            case None:
                pass
    return True


def _settled(watcher: Watcher, choice: TopChoice) -> list[Seen]:
    things = sorted_things(watcher.things(), choice.sort)
    choice.settle(things)
    return things


def _begin(actor: Actor, ask: AskedAction, choice: TopChoice) -> None:
    """Act in a thread: a launcher may take seconds to answer, and keys go on working."""
    what = f"{ask.action} {ask.process}".strip()
    choice.message = f"{what}: asked"

    def act() -> None:
        try:
            answer = actor.act(ask.id, ask.action, ask.process) if ask.process else actor.stop(ask.id)
        except ActionFailed as error:
            answer = f"not done: {error}"
        choice.message = f"{what}: {answer}"

    threading.Thread(target=act, name="ropewalk-top-action", daemon=True).start()
