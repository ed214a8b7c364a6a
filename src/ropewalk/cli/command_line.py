"""How every command of `ropewalk` reads its options and shows its help: click, with the help in boxes.

A command is a function with click's own decorators, and `cls=PanelCommand` for the look.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
from collections.abc import Callable, Generator, Iterable
from io import StringIO
from typing import Any

import click
from click.exceptions import Exit

from ropewalk.escaping import escaped_lines
from ropewalk.near_names import near_names
from ropewalk.progress_stream import is_terminal

_MOST_COLUMNS = 120
"""The width of help in a wider terminal: longer lines are hard to read."""
_WHOLE_SENTENCE = 1000
"""Letters of the first sentence of a command's help that a list of commands shows."""


def failure(message: str, code: int = 2) -> Exit:
    """Say on stderr why the command that runs now ends, after its name; the caller raises what is returned.

    Args:
        message: the reason; may have several lines, which are escaped.
        code: the exit code: 2 for wrong usage, 1 for all else.
    """
    context = click.get_current_context(silent=True)
    click.echo(f"{context.command_path if context else 'ropewalk'}: {escaped_lines(message)}", err=True)
    return Exit(code)


def shows_colours() -> bool:
    """Return whether colours that processes have printed are shown: on a terminal, unless NO_COLOR asks for none."""
    return is_terminal(sys.stdout) and not os.environ.get("NO_COLOR")


class PanelFormatter(click.HelpFormatter):
    """Draws each section of the help, such as the options, in a box with its name."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__(width=min(shutil.get_terminal_size().columns, _MOST_COLUMNS))
        self._section = ""

    @contextlib.contextmanager
    def section(self, name: str) -> Generator[None]:
        self._section = name
        yield

    def write_dl(self, rows: Iterable[tuple[str, str]], *_: object, **__: object) -> None:
        from rich import box  # takes 40 ms, which a command that runs does not need
        from rich.console import Console
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(style="bold cyan")
        table.add_column(ratio=1)
        for name, words in rows:
            table.add_row(Text(name), Text(words))
        drawn = StringIO()
        lines = box.ROUNDED if _can_show(box.ROUNDED.top_left) else box.ASCII
        # Colours are removed when it is printed, unless to a terminal. Without a height, rich takes a terminal whose
        # TERM is dumb for 80 columns wide, whatever the width.
        console = Console(file=drawn, width=self.width, height=25, force_terminal=True, highlight=False)
        console.print(Panel(table, box=lines, title=self._section, title_align="left", border_style="dim"))
        self.write_paragraph()
        self.write(drawn.getvalue())


def _can_show(letter: str) -> bool:
    try:
        letter.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


class PanelContext(click.Context):
    """The context of a command whose help is in boxes."""

    formatter_class = PanelFormatter


class PanelCommand(click.Command):
    """A command whose help is in boxes."""

    context_class = PanelContext
    prints_any_letter: bool = True
    """Whether letters that standard output cannot encode are escaped; False for a command whose script prints."""

    def invoke(self, ctx: click.Context) -> Any:
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        if self.prints_any_letter and reconfigure is not None:
            with contextlib.suppress(OSError, ValueError):  # it is closed, or leads elsewhere than where it was opened
                reconfigure(errors="backslashreplace")  # as Python does on stderr: a name must not end the command
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        arguments = [param for param in self.get_params(ctx) if isinstance(param, DescribedArgument)]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl([(param.make_metavar(ctx), param.words) for param in arguments])
        panels: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and (row := option.get_help_record(ctx)):
                panels.setdefault(getattr(option, "panel", "Options"), []).append(row)
        for name, rows in panels.items():
            with formatter.section(name):
                formatter.write_dl(rows)


class PanelGroup(click.Group):
    """A command with subcommands, whose help is in boxes, and theirs too."""

    context_class = PanelContext
    command_class = PanelCommand

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args[0] not in known and not ctx.resilient_parsing:
            near = near_names(args[0], known)
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(_WHOLE_SENTENCE)) for name, one in self.commands.items()])


class DescribedArgument(click.Argument):
    """A positional argument with a line in the help, which click itself has for options only before version 8.5.

    Args:
        declarations: as for every argument of click.
        help: the line.
        more: as for every argument of click.
    """

    def __init__(self, declarations: Any, *, help: str, **more: Any) -> None:
        super().__init__(declarations, **more)
        self.words = help


def argument(name: str, *, help: str, **more: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a positional argument to a command, as `click.argument` does, with a line in its help."""
    return click.argument(name, cls=DescribedArgument, help=help, **more)


class PanelOption(click.Option):
    """An option that is shown in a box of its own, with others of that name.

    Args:
        declarations: as for every option of click.
        panel: name of the box.
        more: as for every option of click.
    """

    def __init__(self, declarations: Any, *, panel: str, **more: Any) -> None:
        super().__init__(declarations, **more)
        self.panel = panel


class Seconds(click.FloatRange):
    """A duration in seconds: 0 or more; NaN, which is neither less nor more, is refused."""

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds
