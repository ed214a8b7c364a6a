"""`rw.report`: one HTML file that shows what runs, or a run of the store, without a server and without a network.

rw.report("run.html", program)                  now
with rw.report("block.html", pool): ...         at the end of the block, with what was recorded in it
rw.report("run.html", "brisk-otter")            a run or a search of the store

pool ── view, once a second ──▶ Watcher ──▶ Seen ──▶ ReportDocument ──▶ file
store ──────────────────────────────────────────────▶
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from ropewalk.atomic_files import replace_file
from ropewalk.control.view import Observable
from ropewalk.page.call_rates import CallRates
from ropewalk.page.echarts_script import echarts_script
from ropewalk.page.report_document import ReportDocument, report_html
from ropewalk.page.view_report import view_document
from ropewalk.page.watcher import LookResult, Source, Watcher

_CLIENT = "report"
_LOOK_S = 1.0
_LATE_S, _AGAIN_S = 3.0, 0.2
_GRAPH = "graph"


class ViewRecorder:
    """Looks at one thing, and keeps the data of all its panels.

    Args:
        source: where its views come from.
        id: of the view; "" for the only one that the source has.
        clock: Unix time in seconds.
    """

    def __init__(self, source: Source, id: str = "", clock: Callable[[], float] = time.time) -> None:
        self._watcher = Watcher(source)
        self._id, self._clock = id, clock
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._began: float | None = None
        self._rates = CallRates()

    def look(self) -> bool:
        """Look once, at all panels that were offered before; returns whether there is a view."""
        self._watcher.look()
        seen = next((one for one in self._watcher.things() if self._id in ("", one.view.id)), None)
        if seen is not None:
            self._id = seen.view.id
            if _GRAPH in seen.panels:
                seen.panels[_GRAPH] = self._rates.add(seen.panels[_GRAPH], seen.view.at)
            self._watcher.want(_CLIENT, self._id, frozenset(seen.view.offers))
        return seen is not None

    def look_at_all(self) -> None:
        """Look until all panels that are offered have data, or for `_LATE_S`: on a busy host a process answers late."""
        self.look()
        end = time.monotonic() + _LATE_S
        while self.look() and self._lacks_panels() and time.monotonic() < end:
            time.sleep(_AGAIN_S)

    def _lacks_panels(self) -> bool:
        seen = self._watcher.seen(self._id)
        return seen is not None and not seen.panels.keys() >= set(seen.view.offers)

    def start(self) -> None:
        """Record from now on, once a second, until `stop`."""
        self._began = self._clock()
        self.look()
        self._thread = threading.Thread(target=self._run, name="ropewalk-report", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the recording, with a last look."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.look()

    def document(self) -> ReportDocument:
        """Return the report of what was seen.

        Raises:
            RuntimeError: nothing was seen.
        """
        seen = self._watcher.seen(self._id)
        if seen is None:
            raise RuntimeError("there is nothing to report: it showed nothing of itself")
        now = self._clock()
        return view_document(seen, now, None if self._began is None else (self._began, now))

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self.look()


class _TargetSource:
    """An object of this process, as a source."""

    def __init__(self, target: Observable) -> None:
        self._target = target
        self._id = ""

    def look(self, panels: Mapping[str, dict[str, int]]) -> list[LookResult]:
        try:
            view = self._target.view(panels.get(self._id, {}))
        except Exception as error:  # whatever it is, such as that it has been closed: the report says so
            if not self._id:
                raise
            return [LookResult(self._id, None, f"{type(error).__name__}: {error}")]
        self._id = view.id
        return [LookResult(view.id, view)]


class WrittenReport:
    """A report in a file, as `report` has written it. A `with` block of it is recorded, and written at its end.

    Attributes:
        path: of the file.
    """

    def __init__(self, path: Path, echarts: str, document: Callable[[], ReportDocument], recorder: ViewRecorder | None):
        self.path: Path = path
        self._echarts, self._document, self._recorder = echarts, document, recorder

    def __enter__(self) -> Self:
        if self._recorder is not None:
            self._recorder.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._recorder is not None:
            self._recorder.stop()
        self.write()

    def write(self) -> None:
        """Write the file, whole or not at all.

        Raises:
            OSError: the file cannot be written.
        """
        parts = (part.encode("utf-8", "replace") for part in report_html(self._document(), self._echarts))
        replace_file(self.path, parts)

    def __repr__(self) -> str:
        return f"<WrittenReport {str(self.path)!r}>"


def report(path: str | os.PathLike[str], what: Any, *, store: str | Path | None = None) -> WrittenReport:
    """Write a report: one HTML file with the pictures of the page, for any browser, without a server or a network.

    As a context manager, it records what happens in the block, such as the task stream of a pool, and writes the file
    again at its end:

        with rw.report("block.html", pool):
            pool.map(evaluate, population)

    The file is for this user alone (mode 0600); it has host names, settings and causes of failures in it.

    Args:
        path: the file to write; an existing one is replaced.
        what: what runs in this process: a `Pool`, a running program, a `Trainer` and the like; or a run or a search of
            the store: the object, or its id, the beginning of its id, or its name.
        store: for a run, path or URL of the store; None: the setting `store`.

    Returns:
        The report, whose file is written.

    Raises:
        ModuleNotFoundError: NiceGUI, from which ECharts comes, is not installed; the message says how to install it.
        TypeError: `what` is nothing of which there are reports.
        RunNotFound: the store has no such run.
        SearchFailed: the search has not run in this process.
        OSError: the file cannot be written.
    """
    echarts = echarts_script()
    recorder: ViewRecorder | None = None
    if callable(results := getattr(what, "results", None)):  # of a search, which says so if it has not run
        what, store = results(), store or getattr(what, "store", None)
    if callable(getattr(what, "view", None)) and not _is_search(what):
        recorder = ViewRecorder(_TargetSource(cast("Observable", what)))
        recorder.look_at_all()
    written = WrittenReport(Path(path), echarts, recorder.document if recorder else _stored(what, store), recorder)
    written.write()
    return written


def _is_search(what: Any) -> bool:
    """Whether something is the results of a search: the store has more of them than they show themselves."""
    return callable(getattr(what, "ranked", None)) and isinstance(getattr(what, "run", None), str)


def _stored(what: Any, store: str | Path | None) -> Callable[[], ReportDocument]:
    """Return what reads the report of a run from the store."""
    ref, flush = _run_of(what), getattr(what, "flush", None)
    from ropewalk.page.run_report import run_document  # a store needs SQLAlchemy; what runs does not

    def document() -> ReportDocument:
        if callable(flush):  # of a run that goes on in this process
            flush()
        return run_document(ref, store)

    return document


def _run_of(what: Any) -> str:
    """Return the id of a run that an object stands for."""
    if isinstance(what, str):
        return what
    for name in ("id", "run"):  # of a run, and of the results of a search
        if isinstance(found := getattr(what, name, None), str) and found:
            return found
    raise TypeError(
        "there are reports of pools, running programs, trainers and others that run, of runs and searches, and of ids "
        f"and names of runs, not of {what!r}"
    )


__all__ = ["ViewRecorder", "WrittenReport", "report"]
