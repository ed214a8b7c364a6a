"""`Launchers`: the programs, pools and others of this user on this machine, asked by the control channel.

    Watcher ── look ──▶ Launchers ── a connection for each, kept open ──▶ ControlServer of each launcher
    click ──── act ───▶     └────── a connection of its own ───────────▶

A launcher that does not answer delays nobody else: it is asked again when its last answer has come.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from ropewalk import settings
from ropewalk.control.launchers import (
    Launcher,
    LauncherConnection,
    LauncherGone,
    LauncherSilent,
    RequestFailed,
    find_launchers,
    usual_parents,
)
from ropewalk.control.server import Act, ActionDone, LogFiles, LogFilesAre, Look, Stacks, StacksAre, Stop, ViewIs
from ropewalk.control.view import View
from ropewalk.errors import TransportRefused
from ropewalk.page.actions import ActionFailed
from ropewalk.page.watcher import LookResult

_PATIENCE_S = 0.5
"""A look waits this long for answers; later ones are taken by the next look."""
_SILENT_S = 3.0
"""After this the view says that there was no answer."""
_NUM_THREADS = 16
_STACKS_S = 5.0
_STOP_S = 30.0


def running_launchers() -> list[Launcher]:
    """Return what this user runs on this machine."""
    return find_launchers(usual_parents(settings.current().run_folder))


@dataclass(slots=True, eq=False)
class _Conversation:
    """With one launcher: a connection that stays open, and the look that is under way."""

    launcher: Launcher
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    connection: LauncherConnection | None = None
    asked_at: float = 0.0
    answer: Future[ViewIs] | None = None

    def look(self, panels: dict[str, int]) -> ViewIs:
        if self.connection is None:
            self.connection = self.stack.enter_context(self.launcher.connect())
        try:
            return self.connection.ask(Look(panels), ViewIs)
        except BaseException:
            self.close()  # a late answer would be taken for that of the next question
            raise

    def last_view(self) -> View | None:
        """Return what it showed last, if it has ended and has said that; the conversation is over."""
        try:
            if self.answer is not None:
                self.answer.result()
            return self.connection.last_view() if self.connection else None
        except LauncherGone as gone:
            return gone.last
        except (LauncherSilent, RequestFailed, TransportRefused):
            return None
        finally:
            self.close()

    def close(self) -> None:
        self.connection = None
        self.stack.close()


class Launchers:
    """Looks at what runs, and acts on it; a `Source` and an `Actor`.

    Args:
        find: finds the launchers.
        clock: seconds; for tests.
    """

    def __init__(
        self,
        find: Callable[[], Sequence[Launcher]] = running_launchers,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find, self._clock = find, clock
        self._conversations: dict[Path, _Conversation] = {}
        self._executor = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="ropewalk-look")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        for conversation in self._conversations.values():
            conversation.close()

    # As a source

    def look(self, panels: Mapping[str, dict[str, int]]) -> list[LookResult]:
        """Return a view of each, and why there is none; of those that have ended since the last look, the last view."""
        last_looks: list[LookResult] = []
        found = {launcher.file: launcher for launcher in self._find()}
        for file in self._conversations.keys() - found.keys():
            conversation = self._conversations[file]
            if conversation.answer is None or conversation.answer.done():
                if last := conversation.last_view():
                    last_looks.append(LookResult(conversation.launcher.id, last))
                del self._conversations[file]
        for file, launcher in found.items():
            conversation = self._conversations.setdefault(file, _Conversation(launcher))
            if conversation.answer is None:
                conversation.asked_at = self._clock()
                wanted = panels.get(launcher.id, {})
                conversation.answer = self._executor.submit(conversation.look, wanted)
        under_way = [one.answer for one in self._conversations.values() if one.answer]
        wait(under_way, _PATIENCE_S)
        looks = (self._answer_of(self._conversations[file]) for file in found)
        return [*last_looks, *(look for look in looks if look)]

    def _answer_of(self, conversation: _Conversation) -> LookResult | None:
        launcher, answer = conversation.launcher, conversation.answer
        assert answer
        if not answer.done():
            silent_s = self._clock() - conversation.asked_at
            return LookResult(launcher.id, None, str(launcher.silent(round(silent_s))) if silent_s > _SILENT_S else "")
        conversation.answer = None
        try:
            return LookResult(launcher.id, answer.result().view)
        except LauncherGone as gone:
            return LookResult(launcher.id, gone.last) if gone.last else None
        except (LauncherSilent, RequestFailed, TransportRefused) as error:
            return LookResult(launcher.id, None, str(error))

    # As an actor

    def log_files(self, id: str) -> dict[str, Path]:
        """Return the files that hold the output of processes, by name of the process."""
        with self._asking(id) as connection:
            paths = connection.ask(LogFiles(), LogFilesAre).paths
        return {name: Path(path) for name, path in paths.items()}

    def stacks(self, id: str, process: str = "") -> dict[str, str]:
        """Return the Python stacks of one process, or of all."""
        with self._asking(id) as connection:
            return connection.ask(Stacks(process or None, _STACKS_S), StacksAre, 2 * _STACKS_S).stacks

    def act(self, id: str, action: str, process: str = "") -> str:
        """Do something to one process, or to the whole; returns what was done."""
        with self._asking(id) as connection:
            return connection.ask(Act(action, process), ActionDone, _STOP_S).text

    def stop(self, id: str) -> str:
        """Stop the whole; returns how it ended."""
        with self._asking(id) as connection:
            view = connection.ask(Stop(None), ViewIs, _STOP_S).view
        return f"{view.kind} {view.name} has ended: {view.state}"

    @contextlib.contextmanager
    def _asking(self, id: str) -> Generator[LauncherConnection]:
        """Connect to a launcher; what goes wrong there becomes the text of an `ActionFailed`."""
        try:
            meant = [launcher for launcher in self._find() if launcher.id == id]
            if not meant:
                raise ActionFailed("it has ended, or its launcher is gone")
            with meant[0].connect() as connection:
                yield connection
        except (LauncherGone, LauncherSilent, RequestFailed, TransportRefused) as error:
            raise ActionFailed(str(error)) from error
