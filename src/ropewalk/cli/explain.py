"""`ropewalk explain`: the page of an error, in the terminal and without a network."""

from __future__ import annotations

import json
from importlib import resources

import click

from ropewalk.cli.command_line import PanelCommand, argument, failure
from ropewalk.escaping import escaped
from ropewalk.near_names import near_names

_PAGES = resources.files("ropewalk") / "error_pages"
"""One page for each exception of `ropewalk.errors`; the folder `docs/errors` of the site is a link to it."""


@click.command(cls=PanelCommand)
@argument("name", required=False, help="The error, such as TaskPoisoned; without it, list all.")
@click.option("--json", "as_json", is_flag=True, help="Print the page, or the list, as JSON.")
def explain(name: str | None, as_json: bool) -> None:
    """Explain what an error means, why it happens and what to do about it.

    Exit code 2 if no error has this name.
    """
    if name is None:
        _list(as_json)
        return
    names = error_names()
    asked = name.rpartition(".")[2]  # a traceback shows ropewalk.errors.TaskPoisoned
    exact = next((each for each in names if each.lower() == asked.lower()), None)
    if exact is None:
        near = " or ".join(near_names(asked, names, most=3))
        hint = f"did you mean {near}? All names: ropewalk explain" if near else "all names: ropewalk explain"
        if asked.upper().startswith("SIG"):
            hint = "what kills a worker by a signal, and what to do: ropewalk explain WorkerLost"
        raise failure(f"no error of Ropewalk is called {escaped(asked)}; {hint}")
    page = error_page(exact)
    if as_json:
        click.echo(json.dumps({"name": exact, "meaning": _meaning(page), "page": page}))
    else:
        _show(page)


def error_names() -> list[str]:
    """Return the names of all errors that have a page, sorted."""
    files = (each.name for each in _PAGES.iterdir())
    return sorted(each.removesuffix(".md") for each in files if each.endswith(".md") and each != "index.md")


def error_page(name: str) -> str:
    """Return the page of an error, in Markdown.

    Raises:
        FileNotFoundError: no error has this name.
    """
    return (_PAGES / f"{name}.md").read_text(encoding="utf-8")


def _meaning(page: str) -> str:
    """Return the first sentence of a page, which stands alone in its line."""
    return next(line for line in page.splitlines()[1:] if line)


def _list(as_json: bool) -> None:
    rows = [{"name": name, "meaning": _meaning(error_page(name))} for name in error_names()]
    if as_json:
        click.echo(json.dumps(rows))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        click.echo(f"{row['name']:{width}}  {row['meaning']}")


def _show(page: str) -> None:
    """Print a page: formatted on a terminal, else as it is."""
    from rich.console import Console
    from rich.markdown import Markdown  # takes 40 ms, which the list does not need

    console = Console(highlight=False)
    if console.is_terminal:
        console.print(Markdown(page))
    else:
        click.echo(page.rstrip())
