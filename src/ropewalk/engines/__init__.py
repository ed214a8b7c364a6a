"""Where jobs run: one file per cluster manager, and the table of their names.

An engine is imported when it is first used, because some engines need the client of a cluster manager. Other
packages add engines by the entry point group `ropewalk.engines`, whose entries name a class as this table does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ropewalk.errors import EngineError, UnknownEngine
from ropewalk.families import Family

if TYPE_CHECKING:
    from ropewalk.engines.engine import Engine

ENGINES: Family[str] = Family(
    "engine",
    {
        "docker": "ropewalk.engines.docker:DockerEngine",
        "kubernetes": "ropewalk.engines.kubernetes:KubernetesEngine",
        "local": "ropewalk.engines.local:LocalEngine",
        "lsf": "ropewalk.engines.lsf:LsfEngine",
        "mpi": "ropewalk.engines.mpi:MpiEngine",
        "pbs": "ropewalk.engines.pbs:PbsEngine",
        "ray": "ropewalk.engines.ray:RayEngine",
        "ssh": "ropewalk.engines.ssh:SshEngine",
        "slurm": "ropewalk.engines.slurm_steps:slurm_engine",
    },
    group="ropewalk.engines",
    unknown=UnknownEngine,
    broken=EngineError,
)
"""A new engine is one file and one line here: `module:Class`, or a function that chooses a class; either takes options.
"""


def known_engines() -> dict[str, str]:
    """Return every engine that can be named: ours, and those that installed packages add."""
    return ENGINES.installed() | ENGINES


def make_engine(name: str, options: Mapping[str, object] | None = None) -> Engine:
    """Make the engine of a name, with its own options.

    Args:
        name: the name of the engine, such as "slurm".
        options: the engine's options by name.

    Returns:
        A new engine.

    Raises:
        UnknownEngine: no engine has this name; the message lists all engines.
        EngineError: a package or command that the engine needs is not installed, or does not work here.
        SettingsError: the engine has no such option, or the option cannot have that value.
    """
    from ropewalk.engines.engine import Engine  # agents and their processes need none

    made: Callable[[Mapping[str, object]], Any] = ENGINES.member(name)
    engine = made(options or {})
    if not isinstance(engine, Engine):
        place = known_engines()[name]
        raise EngineError(
            f"the engine {name!r} ({place}) made {engine!r}, which is not a ropewalk.engines.engine.Engine"
        )
    return engine
