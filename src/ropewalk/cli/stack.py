"""`ropewalk stack`: print the Python stacks of every node of a running program."""

from __future__ import annotations

import json

import click

from ropewalk.cli.choosing import choose_launcher, telling_failures
from ropewalk.cli.command_line import PanelCommand, argument, failure
from ropewalk.control.launchers import ANSWER_S
from ropewalk.control.server import Stacks, StacksAre
from ropewalk.escaping import escaped, escaped_lines

_STACK_S = 5.0
"""The timeout for the stacks of nodes, in seconds."""


@click.command(cls=PanelCommand)
@argument(
    "program",
    required=False,
    help="Name of the program or the start of it, or the launcher's pid (default: the only program).",
)
@argument("node", required=False, help="A node, or a replica such as actor.3 (default: all).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: an object with the stacks of each replica.")
def stack(program: str | None, node: str | None, as_json: bool) -> None:
    """Print the Python stack of every node of a running program, without stopping it."""
    launcher = choose_launcher(program)
    with telling_failures(), launcher.connect() as conversation:
        stacks = conversation.ask(Stacks(node, _STACK_S), StacksAre, _STACK_S + ANSWER_S).stacks
    if not stacks:
        what = "no node runs" if node is None else f"no node '{escaped(node)}' runs"
        raise failure(f"{what} in {escaped(str(launcher))}; ropewalk ps shows its nodes")
    if as_json:
        click.echo(json.dumps(stacks, indent=2))
        return
    click.echo(
        "\n\n".join(f"[{escaped(name)}]\n{escaped_lines(text.rstrip())}" for name, text in sorted(stacks.items()))
    )
