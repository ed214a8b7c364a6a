"""What the page does with runs: each action is carried out in a thread, and answers with what happened or why not.

pause, stop, kill        a request in the store, which the process of the run answers
continue, fork, rerun    the command of the run is started, as a process of its own that outlives the page
archive, delete, pin     a change of the store
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.errors import RunNotFound, RunStillRunning, RunUnsuitable, SettingsError
from ropewalk.page.actions import ActionFailed
from ropewalk.quantities import counted
from ropewalk.tracking.checkpoints import CheckpointFolder, shown_step
from ropewalk.tracking.records import NoteAdded, RunRecord
from ropewalk.tracking.relaunch_commands import RelaunchCommand, to_continue, to_fork, to_rerun
from ropewalk.tracking.run_requests import answer_to, answer_words, check_can_be_asked, kill_run
from ropewalk.tracking.store.rows import RunRow
from ropewalk.trusted_files import make_private_folder

if TYPE_CHECKING:  # stores need an extra
    from ropewalk.tracking.store.store import RunStore

STARTED = "started"
"""Folder, beside those of the runs, with the output of what the page has started."""
_FAILS_WITHIN_S = 2.0
"""A command that ends within this time is told of with its output."""
_TAIL_BYTES = 1500
_OWN_VARIABLES = ("NICEGUI_STORAGE_PATH",)


@dataclass(frozen=True, slots=True)
class RunAction:
    """Something to do with a run.

    Attributes:
        name: one of `ACTIONS`.
        run: id of the run.
        settings: settings to replace, for "fork" and "rerun".
        step: step of the checkpoint, for "pin", "unpin" and "fork"; None: the newest, for "fork".
        text: the note, for "note".
    """

    name: str
    run: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    step: float | None = None
    text: str = ""


ACTIONS = (
    "pause",
    "stop",
    "kill",
    "continue",
    "fork",
    "rerun",
    "archive",
    "unarchive",
    "delete",
    "note",
    "pin",
    "unpin",
)
"""All that can be done with a run."""


def perform(store: RunStore, action: RunAction) -> str:
    """Carry out an action, and return what happened; takes up to some seconds.

    Raises:
        ActionFailed: it was not done; says why.
        StoreError: the store cannot be read or written.
    """
    try:
        return _perform(store, action)
    except (RunUnsuitable, RunStillRunning, RunNotFound, SettingsError) as error:
        raise ActionFailed(str(error)) from error


def _perform(store: RunStore, action: RunAction) -> str:
    row = store.run(action.run)
    match action.name:
        case "pause" | "stop" | "kill":
            return _ask(store, action)
        case "continue":
            return started(to_continue(store, row, is_trusted=False), store.folder / STARTED, row.id)
        case "fork":
            command = to_fork(store, row, action.settings, action.step, is_trusted=False)
            return started(command, store.folder / STARTED, row.id)
        case "rerun":
            return started(to_rerun(store, row, action.settings, is_trusted=False), store.folder / STARTED, row.id)
        case "archive":
            store.archive(row.id)
            return f"{row.name} is archived; lists leave it out"
        case "unarchive":
            store.unarchive(row.id)
            return f"{row.name} is in lists again"
        case "delete":
            return f"{counted(len(store.delete(row.id)), 'run')} deleted, {row.name} among them"
        case "pin" | "unpin":
            return _pin(store, row, action)
        case "note":
            store.apply([RunRecord(row.id, NoteAdded(action.text, time.time()))])
            return "the note is kept"
        case other:
            raise ActionFailed(f"there is no action {other!r}; there are {', '.join(ACTIONS)}")


def _ask(store: RunStore, action: RunAction) -> str:
    row = store.run(action.run)
    check_can_be_asked(row, action.name)
    if action.name == "kill":
        number, answered = kill_run(store, row)
    else:
        number = store.request(row.id, action.name)
        answered = answer_to(store, number)
    now = store.run(row.id)
    words = f"request {number}: {answer_words(now, answered)}. {row.name} is {now.state}"
    if answered is None or not answered.ok:
        raise ActionFailed(words if action.name == "kill" else f"{words}. Kill ends its process at once")
    return words


def _pin(store: RunStore, row: RunRow, action: RunAction) -> str:
    step, folder = action.step or 0.0, Path(row.folder) / "checkpoints"
    if "://" in store.where and not folder.resolve().is_relative_to(store.folder.resolve()):
        raise ActionFailed(f"{folder} is not in the folder of runs {store.folder}, and a database names it")
    checkpoints = CheckpointFolder(folder)
    try:
        (checkpoints.pin if action.name == "pin" else checkpoints.unpin)(step)
    except (LookupError, OSError) as error:
        raise ActionFailed(str(error)) from error
    kept = "kept whatever the policy says" if action.name == "pin" else "kept as long as the policy says"
    return f"the checkpoint of step {shown_step(step)} is {kept}"


def started(command: RelaunchCommand, folder: Path, run: str) -> str:
    """Start a command as a process that outlives this one.

    Args:
        command: the command.
        folder: for its output.
        run: id of the run that it comes from.
    """
    make_private_folder(folder)
    # Two that are started in one second have files of their own.
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{run}-{os.urandom(2).hex()}.txt"
    environment = {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as output:
            process = subprocess.Popen(
                command.argv, cwd=command.folder, env={**environment, **command.variables}, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        raise ActionFailed(f"its command cannot be run in {command.folder}: {error}\n{command}") from error
    try:
        code = process.wait(_FAILS_WITHIN_S)
    except subprocess.TimeoutExpired:
        threading.Thread(target=process.wait, name="ropewalk-started", daemon=True).start()  # so that it is no zombie
        return f"started as process {process.pid}; its output is in {path}\n{command}"
    tail = path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    words = f"process {process.pid} ended with exit code {code}\n{command}\n{tail}"
    if code:
        raise ActionFailed(words)
    return words


__all__ = ["ACTIONS", "RunAction", "perform", "started"]
