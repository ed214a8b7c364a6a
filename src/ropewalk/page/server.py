"""Serves the page, in a process of its own: asks what runs by the control channel, and reads runs from the store.

ropewalk page ─▶ serve ─▶ uvicorn ─▶ Gate ─▶ NiceGUI ─▶ pages
                                               Watcher ─▶ launchers        Store
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ropewalk import tracking
from ropewalk.escaping import escaped, escaped_lines
from ropewalk.page.actions import Actor
from ropewalk.page.gate import ROLE, Access, Gate, Role, place_of
from ropewalk.page.tab_roles import tie_tabs_to_roles
from ropewalk.page.watcher import Source, Watcher
from ropewalk.transport.bounded_listener import BoundedListener

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from ropewalk.page.runs.store_reader import StoreReader

LOOPBACK = "127.0.0.1"
USUAL_PORT = 8470
MOST_STRANGERS = 256
"""Connections over which no token has come, TLS handshakes included. Of more, the oldest of the busiest source is
closed: they would take all descriptors."""

_LOGGERS = ("nicegui", "uvicorn.error", "asyncio")
"""Loggers that log what browsers send, which may be a reader's."""
_LEFT = "No response returned."
"""What Starlette's middleware raises if a request was gone before its answer, as when somebody goes to another page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """How the page is served.

    Attributes:
        host: address to listen on.
        port: 0 for any that is free; None for the usual one, or any if that is taken.
        owner: token of those who may act.
        reader: token of those who may only look.
        certificate: file with a certificate chain, PEM; "": none for 127.0.0.1, elsewhere one that is made.
        key: file with its private key, PEM.
        fingerprint: SHA-256 of a certificate that was made; "".
        names: names by which browsers may call the host, beside the address.
        store: of runs; "" for that of the settings.
    """

    host: str = LOOPBACK
    port: int | None = 0
    owner: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    reader: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    certificate: str = ""
    key: str = ""
    fingerprint: str = ""
    names: tuple[str, ...] = ()
    store: str = ""


@dataclass(frozen=True, slots=True)
class PageAddress:
    """Where the page is.

    Attributes:
        url: for owners, who may act.
        reader_url: for readers.
        fingerprint: SHA-256 of a certificate that was made; "".
    """

    url: str = field(repr=False)
    reader_url: str = field(repr=False)
    fingerprint: str = ""


def serve(
    options: PageOptions,
    source: Source,
    opened: Callable[[PageAddress], None],
    folder: Path,
    actor: Actor | None = None,
) -> None:
    """Serve the page until SIGINT or SIGTERM.

    Args:
        options: how.
        source: what runs.
        opened: called once, when the page answers.
        folder: for files of the page, which only this user can enter; see `claimed_folder`.
        actor: acts on what runs; without one, the page only shows it.

    Raises:
        OSError: the address cannot be listened on.
    """
    # NiceGUI reads and writes files in a folder, by default one of the current folder, where anybody may have put them.
    os.environ["NICEGUI_STORAGE_PATH"] = str(folder)
    if options.host != LOOPBACK and not options.certificate:
        options = _certified(options, folder)
    _serve(options, source, opened, actor)


def _certified(options: PageOptions, folder: Path) -> PageOptions:
    """Make a certificate for the address; it cannot be verified, but compared by its fingerprint."""
    from ropewalk.transport.authority import RunAuthority

    names = [options.host, *options.names]
    issued = RunAuthority.create("page").issue("ropewalk page", names=names)
    chain, key = folder / "chain.pem", folder / "key.pem"
    chain.write_text(issued.cert_pem + issued.ca_pem)
    key.write_text(issued.key_pem)
    return replace(options, certificate=str(chain), key=str(key), fingerprint=issued.fingerprint)


def _serve(options: PageOptions, source: Source, opened: Callable[[PageAddress], None], actor: Actor | None) -> None:
    import uvicorn

    from ropewalk.page.bounded_http import BoundedHttp, StrangersOnce

    for name in _LOGGERS:
        logging.getLogger(name).addFilter(is_no_visitor_who_left)
        logging.getLogger(name).addFilter(StrangersOnce())
        logging.getLogger(name).addFilter(escape_record)
    watcher = Watcher(source)
    app, reader = _pages(options, watcher, actor)
    secure = bool(options.certificate)
    port = USUAL_PORT if options.port is None else options.port
    config = uvicorn.Config(
        app, options.host, port, log_level="warning", lifespan="on", ws_max_size=1 << 20,
        ssl_certfile=options.certificate or None, ssl_keyfile=options.key or None, server_header=False,
        timeout_graceful_shutdown=2, http=BoundedHttp, proxy_headers=False, loop="asyncio",  # calls `accept`
    )  # fmt: skip
    listener = BoundedListener(_bound(config, or_any=options.port is None), MOST_STRANGERS)
    port = listener.getsockname()[1]
    names = frozenset(name.lower() for name in (options.host, "localhost", LOOPBACK, "[::1]", *options.names))
    tokens: dict[str, Role] = {options.owner: "owner", options.reader: "reader"}
    access = Access(tokens, names, f"ropewalk_{port}", secure)
    config.app = Gate(app, access, listener.admit)
    base = f"{'https' if secure else 'http'}://{options.host}:{port}"
    owner_url, reader_url = (f"{base}{place_of(token)}/?token={token}" for token in (options.owner, options.reader))

    class PageServer(uvicorn.Server):
        async def startup(self, sockets: list[Any] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                opened(PageAddress(owner_url, reader_url, options.fingerprint))

    watcher.start()
    try:
        PageServer(config).run(sockets=[listener])
    finally:
        watcher.close()
        reader.close()


def _pages(options: PageOptions, watcher: Watcher, actor: Actor | None) -> tuple[FastAPI, StoreReader]:
    """Make the pages, whose tabs know the roles of their visitors; returns the app, and what reads the store for it."""
    from fastapi import FastAPI
    from fastapi.middleware.gzip import GZipMiddleware
    from nicegui import Client, core, ui

    from ropewalk.page.now import add_now_page
    from ropewalk.page.runs.pages import add_runs_pages
    from ropewalk.page.thing import add_thing_page

    add_now_page(watcher)
    add_thing_page(watcher, actor)
    reader = add_runs_pages(lambda: tracking.open_store(options.store or None, create=False))
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    ui.run_with(  # pyright: ignore[reportUnknownMemberType]
        app, title="Ropewalk", show_welcome_message=False, reconnect_timeout=30.0, language="en-US",
        binding_refresh_interval=None, tailwind=False,  # its script took a sixth of what opening a page costs a browser
        gzip_middleware_factory=lambda app: GZipMiddleware(app, compresslevel=1),
    )  # fmt: skip
    sockets = cast("Any", core.sio)  # python-socketio has no types
    tie_tabs_to_roles(
        sockets.handlers["/"],
        lambda socket: scope["asgi.scope"].get(ROLE) if (scope := sockets.get_environ(socket)) else None,
        lambda tab: Client.instances[tab].request.scope.get(ROLE) if tab in Client.instances else None,
    )
    return app, reader


def is_no_visitor_who_left(record: logging.LogRecord) -> bool:
    """Keep all records but the error of Starlette for a browser that did not wait for its answer; a filter."""
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, RuntimeError) and str(error) == _LEFT)


def escape_record(record: logging.LogRecord) -> bool:
    """Escape the texts of a record, so that no visitor controls the terminal of the page; a filter of a logger."""
    record.msg, record.args = escaped(record.getMessage()), ()
    if record.exc_info:
        record.exc_text = escaped_lines(logging.Formatter().formatException(record.exc_info))
    return True


def _bound(config: uvicorn.Config, *, or_any: bool) -> Any:
    """Return a bound socket; if its port is taken, at any port, or an error."""
    for port in [config.port, *([0] if or_any else [])]:
        config.port = port
        logging.disable(logging.ERROR)  # uvicorn logs the reason, and ends the process
        try:
            return config.bind_socket()
        except SystemExit:
            pass
        finally:
            logging.disable(logging.NOTSET)
    raise OSError(errno.EADDRINUSE, "the port is taken, or the address is not one of this host")
