"""Finds the running program or submitted run that a word on the command line names, and reports failures to ask it."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence

from ropewalk import settings
from ropewalk.cli.command_line import failure
from ropewalk.cli.submissions import RunState, Submission, has_ended, submissions
from ropewalk.control.launchers import (
    Launcher,
    LauncherGone,
    LauncherSilent,
    RequestFailed,
    find_launchers,
    usual_parents,
)
from ropewalk.errors import EngineError, SettingsError, TransportRefused
from ropewalk.escaping import escaped

Run = Launcher | Submission
"""A running program of this machine, or a run that was submitted from it."""


_NUM_LISTED = 10
"""The number of submitted runs that are listed, the latest."""


class NotChosen(Exception):
    """A word names no running program, or more than one; the message lists the running programs."""


def running_launchers() -> list[Launcher]:
    """Return what of this user runs on this machine; invalid settings end the command."""
    try:
        run_folder = settings.current().run_folder
    except SettingsError as error:
        raise failure(str(error)) from None
    return find_launchers(usual_parents(run_folder))


def choose_launcher(word: str | None) -> Launcher:
    """Return the launcher that a word names; otherwise end the command with a list of running programs."""
    try:
        return choose(word, running_launchers())
    except NotChosen as error:
        raise failure(str(error)) from None


def choose_run(word: str) -> Run:
    """Return the running program or submitted run that a word names; otherwise end the command with a list.

    A submitted script may run a program of its own: its id names the run, the program's name the program.
    """
    remembered = submissions()
    exactly = [run for run in remembered if run.id == word]
    if exactly:
        return exactly[0]
    launchers = running_launchers()
    try:
        return choose(word, launchers)
    except NotChosen as error:
        begun = _alive([run for run in remembered if run.id.startswith(word)])
        if len(begun) == 1 and not any(launcher.name.startswith(word) for launcher in launchers):
            return begun[0]
        raise failure(f"{error}{_listed(begun or remembered)}") from None


def choose_submission(word: str) -> Submission:
    """Return the submitted run that a word names; otherwise end the command with a list."""
    remembered = submissions()
    meant = [run for run in remembered if run.id == word] or [run for run in remembered if run.id.startswith(word)]
    meant = _alive(meant)
    if len(meant) == 1:
        return meant[0]
    what = "may be any of several runs" if meant else "is not a run that was submitted here"
    raise failure(f"'{escaped(word)}' {what}{_listed(meant or remembered)}")


def _alive(meant: list[Submission]) -> list[Submission]:
    """Return the runs that are not known to have ended, or all if there is only one or all have ended."""
    return [run for run in meant if len(meant) == 1 or not has_ended(run)] or meant


def _listed(runs: Sequence[Submission]) -> str:
    if not runs:
        return ""
    shown = "\n".join(f"  {escaped(str(run))}" for run in runs[-_NUM_LISTED:])
    return f"\nsubmitted runs:\n{shown}"


def choose(word: str | None, launchers: Sequence[Launcher]) -> Launcher:
    """Return the launcher that a word names: by name, else by id, by pid, else by the beginning of its name.

    Args:
        word: the word; None names the only program, or else the only launcher, those within workers left out.
        launchers: the running launchers.

    Returns:
        The launcher.

    Raises:
        NotChosen: the word names none of them, or several.
    """
    own = [launcher for launcher in launchers if not launcher.within] or list(launchers)
    if word is None:
        programs = [launcher for launcher in own if launcher.kind == "program"]
        meant, what = programs if len(programs) == 1 else own, "no program was named"
    else:
        meant = fitting(word, own) or fitting(word, launchers)
        what = f"no running program is called '{escaped(word)}'"
    if len(meant) == 1:
        return meant[0]
    if not launchers:
        nothing = "this user runs nothing on this machine"
        raise NotChosen(nothing if word is None else f"{what}: {nothing}")
    if meant:
        what = f"{what}, and several run" if word is None else f"'{escaped(word)}' may be any of several programs"
    listed = "\n".join(f"  {escaped(str(launcher))}" for launcher in meant or launchers)
    raise NotChosen(f"{what}; give the name or the pid of one:\n{listed}")


def fitting(word: str, launchers: Sequence[Launcher]) -> list[Launcher]:
    """Return the launchers that a word means: by name, else by id, by pid, else by the beginning of their name."""
    for fits in _FITS:
        if found := [launcher for launcher in launchers if fits(launcher, word)]:
            return found
    return []


def fitting_things(
    word: str, launchers: Sequence[Launcher], submitted: Sequence[RunState]
) -> tuple[list[Launcher], list[RunState]]:
    """Return the launchers and the submitted runs that a word means; otherwise end the command with a list.

    A run is meant by its id or the beginning of it.
    """
    found = fitting(word, launchers)
    runs = [state for state in submitted if state.submission.id.startswith(word)]
    if not found and not runs:
        told = [*map(str, launchers), *(f"{state.submission.id} (submitted)" for state in submitted[-_NUM_LISTED:])]
        listed = "".join(f"\n  {escaped(line)}" for line in told)
        those = f"; there are:{listed}" if told else ": this user runs nothing on this machine"
        raise failure(f"nothing that runs is called '{escaped(word)}'{those}")
    return found, runs


def _is_name(launcher: Launcher, word: str) -> bool:
    return launcher.name == word


def _is_id(launcher: Launcher, word: str) -> bool:
    return launcher.id == word


def _is_pid(launcher: Launcher, word: str) -> bool:
    return str(launcher.pid) == word


def _is_prefix(launcher: Launcher, word: str) -> bool:
    return launcher.name.startswith(word)


_FITS = (_is_name, _is_id, _is_pid, _is_prefix)


@contextlib.contextmanager
def telling_failures() -> Generator[None]:
    """End the command with exit code 1 and the reason if a launcher cannot be asked."""
    try:
        yield
    except BrokenPipeError:  # nobody reads what is printed any more, as after `| head`: click ends the command silently
        raise
    except (
        LauncherGone,
        LauncherSilent,
        RequestFailed,
        TransportRefused,
        EngineError,
        SettingsError,
        OSError,
    ) as error:
        raise failure(str(error), 1) from None


def names_of_node(node: str, names: Sequence[str]) -> list[str]:
    """Return the replicas that a word names: "actor" all its replicas, "actor.3" one. Empty if there are none."""
    return [name for name in names if node in (name, name.rpartition(".")[0])]
