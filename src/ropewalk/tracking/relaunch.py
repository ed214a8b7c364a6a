"""How a script learns that it goes on with a run, or forks one: variables that `ropewalk runs` sets when it starts it.

ropewalk runs continue ID                        ROPEWALK_CONTINUE=ID
ropewalk runs fork ID --set lr=1e-4 --from 40    ROPEWALK_FORK=ID  ROPEWALK_FORK_STEP=40  ROPEWALK_SET={"lr": 1e-4}
ropewalk runs rerun ID                           ROPEWALK_SET={}

With ROPEWALK_TRIAL=ID, they are meant for that trial of the search that the command runs, and not for a run of the
script itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, cast

from ropewalk.errors import SettingsError

CONTINUE, FORK, FORK_STEP, SET = "ROPEWALK_CONTINUE", "ROPEWALK_FORK", "ROPEWALK_FORK_STEP", "ROPEWALK_SET"
TRIAL = "ROPEWALK_TRIAL"
TOLD = frozenset({CONTINUE, FORK, SET})
"""One of these is there whenever `ropewalk runs` has started the script."""


@dataclass(frozen=True, slots=True)
class Relaunch:
    """What is meant by starting a script again.

    Attributes:
        continues: id of the run that goes on; empty if none does.
        forks: id of the run from whose checkpoint this one begins; empty if it begins by itself.
        fork_step: step of that checkpoint; None: the newest.
        settings: settings that replace those of the script; names of nested ones are joined by ".".
        trial: id of the trial whose function is meant; empty if it is the script.
    """

    continues: str = ""
    forks: str = ""
    fork_step: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    trial: str = ""

    def to_environment(self) -> dict[str, str]:
        """Return the variables for the process of the script."""
        found = {SET: json.dumps(dict(self.settings))}
        if self.continues:
            found[CONTINUE] = self.continues
        if self.forks:
            found[FORK] = self.forks
        if self.fork_step is not None:
            found[FORK_STEP] = repr(self.fork_step)
        if self.trial:
            found[TRIAL] = self.trial
        return found

    def configure(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration of a script with the settings that replace its own.

        Raises:
            SettingsError: a setting is not in the configuration; lists those that are.
        """
        result = _copied(config)
        for name, value in self.settings.items():
            *folders, last = name.split(".") if name not in result else [name]
            place: Any = result
            for folder in folders:
                place = cast("dict[str, Any]", place).get(folder) if isinstance(place, dict) else None
            if not isinstance(place, dict) or last not in place:
                of = "trial" if self.trial else "script"
                raise SettingsError(
                    f"--set {name}: the configuration of the {of} has no {name!r}; it has {', '.join(result)}",
                    name=name,
                    origin=SET,
                )
            place[last] = value
        return result


def take_relaunch(environ: MutableMapping[str, str], *, of_search: bool = False) -> Relaunch:
    """Take the variables out of an environment, so that processes that the script starts do not find them too.

    Args:
        environ: the environment of this process.
        of_search: take those for a trial of a search, and leave those for the script; else the other way round.

    Raises:
        SettingsError: a variable has an invalid value.
    """
    if of_search != (TRIAL in environ):
        return Relaunch()
    continues, forks, trial = environ.pop(CONTINUE, ""), environ.pop(FORK, ""), environ.pop(TRIAL, "")
    step, settings = environ.pop(FORK_STEP, ""), environ.pop(SET, "")
    try:
        decoded: Any = json.loads(settings) if settings else {}
        if not isinstance(decoded, dict):
            raise ValueError("it is not a JSON object")
        at = float(step) if step else None
        return Relaunch(continues, forks, at, cast("dict[str, Any]", decoded), trial)
    except ValueError as error:
        raise SettingsError(
            f"{FORK_STEP}={step!r} must be a number, and {SET}={settings!r:.80} a JSON object: {error}",
            name=SET,
            origin=SET,
        ) from error


def _copied(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _copied(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value
        for name, value in config.items()
    }


__all__ = ["CONTINUE", "FORK", "FORK_STEP", "SET", "TOLD", "TRIAL", "Relaunch", "take_relaunch"]
