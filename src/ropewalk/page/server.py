"""Serves the page, in a process of its own: asks what runs by the control channel, and reads runs from the store.

ropewalk page ─▶ serve ─▶ uvicorn ─▶ Gate ─▶ NiceGUI ─▶ pages
                                               Watcher ─▶ launchers        Store
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field

from ropewalk import tracking
from ropewalk.page.gate import Access, Gate, Role
from ropewalk.page.watcher import Source, Watcher

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """How the page is served.

    Attributes:
        host: address to listen on.
        port: 0 for any that is free.
        owner: token of those who may act.
        reader: token of those who may only look.
        certificate: file with a certificate chain, PEM; "" without TLS.
        key: file with its private key, PEM.
        names: names by which browsers may call the host, beside the address.
        store: of runs; "" for that of the settings.
    """

    host: str = LOOPBACK
    port: int = 0
    owner: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    reader: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    certificate: str = ""
    key: str = ""
    names: tuple[str, ...] = ()
    store: str = ""


def serve(options: PageOptions, source: Source, opened: Callable[[str, str], None]) -> None:
    """Serve the page until SIGINT or SIGTERM.

    Args:
        options: how.
        source: what runs.
        opened: called once with the URLs of an owner and a reader, when the page answers.

    Raises:
        OSError: the address cannot be listened on.
    """
    # NiceGUI reads and writes files in a folder, by default one of the current folder, where anybody may have put them.
    with tempfile.TemporaryDirectory(prefix="ropewalk-page-") as storage:
        os.environ["NICEGUI_STORAGE_PATH"] = storage
        _serve(options, source, opened)


def _serve(options: PageOptions, source: Source, opened: Callable[[str, str], None]) -> None:
    import uvicorn
    from fastapi import FastAPI
    from nicegui import ui

    from ropewalk.page.now import add_now_page
    from ropewalk.page.runs import add_runs_pages
    from ropewalk.page.thing import add_thing_page

    watcher = Watcher(source)
    add_now_page(watcher)
    add_thing_page(watcher)
    reader = add_runs_pages(lambda: tracking.open_store(options.store or None, create=False))
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    ui.run_with(  # pyright: ignore[reportUnknownMemberType]
        app, title="Ropewalk", show_welcome_message=False, reconnect_timeout=30.0, language="en-US"
    )
    secure = bool(options.certificate)
    config = uvicorn.Config(
        app, options.host, options.port, log_level="warning", lifespan="on", ws_max_size=1 << 20,
        ssl_certfile=options.certificate or None, ssl_keyfile=options.key or None, server_header=False,
        timeout_graceful_shutdown=2,
    )  # fmt: skip
    listener = config.bind_socket()
    port = listener.getsockname()[1]
    names = dict.fromkeys([options.host, "localhost", LOOPBACK, *options.names])
    tokens: dict[str, Role] = {options.owner: "owner", options.reader: "reader"}
    access = Access(tokens, frozenset(f"{name.lower()}:{port}" for name in names), secure)
    config.app = Gate(app, access)
    watcher.start()
    base = f"{'https' if secure else 'http'}://{options.host}:{port}/?token="
    opened(f"{base}{options.owner}", f"{base}{options.reader}")
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        watcher.close()
        reader.close()
