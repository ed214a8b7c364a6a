"""`rw.page()`: opens the page from a script or a notebook, in a process of its own that ends with this one.

    script ── starts ──▶ ropewalk page --json ── one line: its addresses ──▶ OpenPage
           ── a pipe that closes when the script ends ──▶ the page ends too

The script is not slowed down: the page asks its control channel as any other terminal does.
"""

from __future__ import annotations

import html
import os
import subprocess
import sys

import msgspec

from ropewalk.errors import RopewalkError
from ropewalk.interpreters import import_environment, module_command
from ropewalk.progress_stream import is_terminal


class PageFailed(RopewalkError):
    """The page could not be served; the text says why."""


class OpenPage:
    """The page, as opened by `page`. It is closed by `close`, at the end of a `with` block, or with the process.

    Attributes:
        url: address for a browser on this host, with the token of those who may act. Keep it to yourself.
        reader_url: address for those who may look only.
    """

    def __init__(self, process: subprocess.Popen[str], url: str, reader_url: str) -> None:
        self._process = process
        self.url = url
        self.reader_url = reader_url

    def __enter__(self) -> OpenPage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the page; may be called twice."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()
        self._process.wait()

    def __repr__(self) -> str:
        return f"<OpenPage {self.url.partition('?')[0]}>"

    def _repr_html_(self) -> str:
        return f'<a href="{html.escape(self.url)}" target="_blank">what runs: the page of Ropewalk</a>'


def page(*, port: int = 0, store: str | None = None) -> OpenPage:
    """Open the page of all that this user runs on this machine, and of the runs of a store; print its address.

    If standard error is no terminal, such as in a job of a cluster, whose log others may read, the address is printed
    without the token, and with the path of a file that holds it for this user alone.

    Args:
        port: to listen on, at 127.0.0.1; 0 for any that is free.
        store: of runs, as for the setting `store`.

    Returns:
        The open page. It ends with this process.

    Raises:
        PageFailed: it cannot be served, such as because the extra `page` is not installed, or the port is taken.
    """
    command = module_command(sys.executable, "ropewalk", "page", "--json", "--with-parent", "--port", str(port))
    environment = {**os.environ, **import_environment()}
    if store:  # not as an argument, which all users see, and a URL may hold a password
        environment["ROPEWALK_STORE"] = store
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment
    )
    try:
        assert process.stdout
        said = process.stdout.readline()
        urls = msgspec.json.decode(said, type=dict[str, str]) if said else dict[str, str]()
    except BaseException:
        process.kill()
        process.wait()
        raise
    if "url" not in urls:
        OpenPage(process, "", "").close()
        raise PageFailed(urls.get("problem") or f"the page ended at once, with exit code {process.returncode}")
    opened = OpenPage(process, urls["url"], urls["reader_url"])
    print(
        f"ropewalk: the page is at {shown_address(opened.url, urls['file'], is_terminal(sys.stderr))}", file=sys.stderr
    )
    return opened


def shown_address(url: str, file: str, is_terminal: bool) -> str:
    """Return the address as it is printed: with the token only on a terminal, since others may read the log of a job.

    Args:
        url: with a token.
        file: that holds it, for this user alone.
        is_terminal: whether it is printed on a terminal.
    """
    return url if is_terminal else f"{url.partition('?')[0]}; its address with the token is in {file}"
