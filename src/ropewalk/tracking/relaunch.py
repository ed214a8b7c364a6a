"""How a script learns that it goes on with a run, or forks one: variables that `ropewalk runs` sets when it starts it.

ropewalk runs continue ID                        ROPEWALK_CONTINUE=ID
ropewalk runs fork ID --set lr=1e-4 --from 40    ROPEWALK_FORK=ID  ROPEWALK_FORK_STEP=40  ROPEWALK_SET={"lr": 1e-4}
ropewalk runs rerun ID                           ROPEWALK_SET={}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, cast

from ropewalk.errors import SettingsError

CONTINUE, FORK, FORK_STEP, SET = "ROPEWALK_CONTINUE", "ROPEWALK_FORK", "ROPEWALK_FORK_STEP", "ROPEWALK_SET"


@dataclass(frozen=True, slots=True)
class Relaunch:
    """What is meant by starting a script again.

    Attributes:
        continues: id of the run that goes on; empty if none does.
        forks: id of the run from whose checkpoint this one begins; empty if it begins by itself.
        fork_step: step of that checkpoint; None: the newest.
        settings: settings that replace those of the script; names of nested ones are joined by ".".
    """

    continues: str = ""
    forks: str = ""
    fork_step: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_environment(self) -> dict[str, str]:
        """Return the variables for the process of the script."""
        found = {SET: json.dumps(dict(self.settings))}
        if self.continues:
            found[CONTINUE] = self.continues
        if self.forks:
            found[FORK] = self.forks
        if self.fork_step is not None:
            found[FORK_STEP] = repr(self.fork_step)
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
                raise SettingsError(
                    f"--set {name}: the configuration of the script has no {name!r}; it has {', '.join(result)}",
                    name=name,
                    origin=SET,
                )
            place[last] = value
        return result


def take_relaunch(environ: MutableMapping[str, str]) -> Relaunch:
    """Take the variables out of an environment, so that processes that the script starts do not find them too.

    Args:
        environ: the environment of this process.

    Raises:
        SettingsError: a variable has an invalid value.
    """
    continues, forks = environ.pop(CONTINUE, ""), environ.pop(FORK, "")
    step, settings = environ.pop(FORK_STEP, ""), environ.pop(SET, "")
    try:
        decoded: Any = json.loads(settings) if settings else {}
        if not isinstance(decoded, dict):
            raise ValueError("it is no JSON object")
        return Relaunch(continues, forks, float(step) if step else None, cast("dict[str, Any]", decoded))
    except ValueError as error:
        raise SettingsError(
            f"{FORK_STEP}={step!r} is a number and {SET}={settings!r:.80} a JSON object: {error}", name=SET, origin=SET
        ) from error


def _copied(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _copied(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value
        for name, value in config.items()
    }


__all__ = ["CONTINUE", "FORK", "FORK_STEP", "SET", "Relaunch", "take_relaunch"]
