"""`ropewalk page`: serve what runs, and the runs of the store, to a browser."""

from __future__ import annotations

import contextlib
import html
import json
import os
import signal
import threading
import urllib.parse
import webbrowser
from pathlib import Path

import click
from click.exceptions import Exit

from ropewalk import settings
from ropewalk.atomic_files import write_new_file
from ropewalk.cli.command_line import PanelCommand, failure
from ropewalk.errors import SettingsError
from ropewalk.page.server import PageAddress
from ropewalk.processes.left_folders import claimed_folder

_NOT_INSTALLED = "the page needs NiceGUI; install it with: pip install 'ropewalk[page]'"


@click.command(cls=PanelCommand)
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", help="Port to listen on, 0 for any (default: 8470, or any)."
)
@click.option("--listen", metavar="ADDRESS", help="Address of this host at which to serve other hosts, by TLS.")
@click.option(
    "--certificate",
    type=click.Path(path_type=Path),
    help="PEM file of a certificate chain for --listen (default: a new one is made).",
)
@click.option("--key", type=click.Path(path_type=Path), help="PEM file of its private key.")
@click.option(
    "--name", multiple=True, metavar="NAME", help="Another name by which browsers call this host; may be repeated."
)
@click.option("--store", metavar="STORE", help="Path of a store, or its URL (default: ROPEWALK_STORE).")
@click.option("--open", "browser", is_flag=True, help="Open the page in a browser on this host.")
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON.")
@click.option("--with-parent", is_flag=True, hidden=True)
def page(
    port: int | None,
    listen: str | None,
    certificate: Path | None,
    key: Path | None,
    name: tuple[str, ...],
    store: str | None,
    browser: bool,
    as_json: bool,
    with_parent: bool,
) -> None:
    """Serve a page that shows all that you run on this machine, and your tracked runs, until Ctrl-C.

    The first printed address has a token with which one may stop and kill what runs; the second only allows looking.
    From another host: ssh -L 8470:127.0.0.1:8470 HOST, and open the same address there.
    """
    try:
        from ropewalk.page.server import LOOPBACK, PageOptions, serve
        from ropewalk.page.source import Launchers
    except ModuleNotFoundError as error:
        raise _failed(
            _NOT_INSTALLED if error.name in ("nicegui", "uvicorn", "fastapi") else str(error), as_json
        ) from None
    if (certificate is None) != (key is None):
        raise _failed("--certificate and --key belong together", as_json, 2)
    if certificate and not listen:
        raise _failed("--certificate is for --listen; 127.0.0.1 is served without TLS", as_json, 2)
    if with_parent:
        _end_with_parent()
    signal.signal(signal.SIGTERM, _exit)
    options = PageOptions(
        host=listen or LOOPBACK, port=port, certificate=str(certificate or ""), key=str(key or ""),
        names=name, store=store or "",
    )  # fmt: skip

    def opened(address: PageAddress) -> None:
        file = _kept_address(address.url, folder) if with_parent else ""
        _tell(address, as_json, file)
        if browser:
            webbrowser.open(_private_link(address.url, folder))

    try:
        with claimed_folder(settings.current().run_folder) as folder, Launchers() as launchers:
            serve(options, launchers, opened, folder, launchers)
    except ModuleNotFoundError as error:
        raise _failed(_NOT_INSTALLED if error.name in ("nicegui", "uvicorn") else str(error), as_json) from None
    except (OSError, SettingsError) as error:
        raise _failed(f"the page cannot be served at {options.host}: {error}", as_json) from None


def _tell(address: PageAddress, as_json: bool, file: str) -> None:
    if as_json:
        found = {"url": address.url, "reader_url": address.reader_url, "fingerprint": address.fingerprint, "file": file}
        click.echo(json.dumps({name: value for name, value in found.items() if value}))
    else:
        click.echo(f"the page:      {address.url}")
        click.echo(f"to look only:  {address.reader_url}")
        if address.fingerprint:
            click.echo(
                f"its certificate was made now; your browser shows this SHA-256 fingerprint: {address.fingerprint}"
            )
        click.echo("Ctrl-C ends it; what runs goes on")


def _kept_address(url: str, folder: Path) -> str:
    """Keep an address with a token in a file that only this user can read; returns its path."""
    file = folder / "address.txt"
    write_new_file(file, [f"{url}\n".encode()], durable=False)
    return str(file)


def _private_link(url: str, folder: Path) -> str:
    """Return the address of a file that leads to another address: all users see the arguments of a browser.

    Args:
        url: with a token.
        folder: that only this user can enter.
    """
    file = folder / "page.html"
    words = f'<!doctype html><meta http-equiv="refresh" content="0;url={html.escape(url)}">'
    write_new_file(file, [words.encode()], durable=False)
    return f"file://{urllib.parse.quote(str(file))}"


def _failed(message: str, as_json: bool, code: int = 1) -> Exit:
    if as_json:
        click.echo(json.dumps({"problem": message}))
    return failure(message, code)


def _exit(number: int, _: object) -> None:
    """Leave all blocks, which remove what they made."""
    raise SystemExit(128 + number)


def _end_with_parent() -> None:
    """End when standard input is closed: its other end is held by the process that opened the page."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="ropewalk-parent", daemon=True).start()
