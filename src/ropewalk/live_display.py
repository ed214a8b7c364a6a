"""`live`: shows something in a notebook, and shows it again while it changes.

cell ── display(thing) ──▶ front end
thread ── once a second: `_repr_html_` differs? ── update of the same display ──▶ front end

In a terminal it is printed once, as text.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from numbers import Real
from typing import Any, Protocol, Self, cast

from ropewalk.argument_kinds import check_number

_END_S = 5.0


class ShownAsHtml(Protocol):
    """Something that a notebook shows as a table: a pool, a program, a trainer, a run, a search, a session."""

    def _repr_html_(self) -> str: ...


class LiveDisplay:
    """What `live` returns. It ends by `close`, with a `with` block, or with the process.

    Args:
        thing: is shown.
        handle: of the display, as IPython has it; None if there is no notebook.
        every_s: seconds between two looks.
    """

    def __init__(self, thing: ShownAsHtml, handle: Any, every_s: float) -> None:
        self._thing, self._handle, self._every_s = thing, handle, every_s
        self._shown = ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if handle is not None:
            self._thread = threading.Thread(target=self._run, name="ropewalk-live", daemon=True)
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Show it for the last time, and no more; may be called twice."""
        if not self._ended.is_set():
            self._ended.set()
            if self._thread is not None:
                self._thread.join(_END_S)
                self._show()

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            self._show()

    def _show(self) -> None:
        # What is shown may have been closed meanwhile: its last state stays.
        with contextlib.suppress(Exception):
            html = self._thing._repr_html_()  # pyright: ignore[reportPrivateUsage]
            if html != self._shown:
                self._handle.update({"text/html": html, "text/plain": repr(self._thing)}, raw=True)
                self._shown = html


def live(thing: ShownAsHtml, *, every_s: float = 1.0) -> LiveDisplay:
    """Show something in a notebook, and again while it changes; where there is no notebook, print it once.

        pool = rw.Pool(4)
        live = rw.live(pool)
        results = pool.map(evaluate, population)
        live.close()

    Args:
        thing: a pool, a running program, a trainer, a run, a search or a session.
        every_s: seconds between two looks.

    Raises:
        TypeError: notebooks have no table for it.
        ValueError: `every_s` is not positive.
    """
    if not hasattr(thing, "_repr_html_") or isinstance(thing, type):
        raise TypeError(f"a pool, a program, a trainer, a run, a search or a session is shown live, not {thing!r}")
    check_number("every_s", every_s, Real, "a number of seconds", above=0, required=True)
    handle = _new_display(thing)
    if handle is None:
        print(thing)
    return LiveDisplay(thing, handle, every_s)


def _new_display(thing: ShownAsHtml) -> Any:
    """Return the handle of a new display; None if this is not a kernel of a notebook."""
    if "ipykernel" not in sys.modules:
        return None
    display = cast("Any", importlib.import_module("IPython.display")).display
    return display(thing, display_id=True)


__all__ = ["LiveDisplay", "live"]
