"""Where jobs run: one file per cluster manager, and the table of their names.

An engine is imported when it is first asked for, because some need the client of a cluster manager. Packages of
others add engines by the entry point group `ropewalk.engines`, whose entries name a class as this table does.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from typing import Any, cast

from ropewalk.engines.engine import Engine
from ropewalk.errors import EngineError, UnknownEngine

#: A new engine is one file and one line here: `module:Class`, or a function that chooses one; called with its options.
ENGINES: dict[str, str] = {
    "docker": "ropewalk.engines.docker:DockerEngine",
    "kubernetes": "ropewalk.engines.kubernetes:KubernetesEngine",
    "local": "ropewalk.engines.local:LocalEngine",
    "mpi": "ropewalk.engines.mpi:MpiEngine",
    "ray": "ropewalk.engines.ray:RayEngine",
    "ssh": "ropewalk.engines.ssh:SshEngine",
    "slurm": "ropewalk.engines.slurm_steps:slurm_engine",
}
_GROUP = "ropewalk.engines"


def known_engines() -> dict[str, str]:
    """Every engine that can be named here: ours, and those that installed packages add."""
    # Imported here: it takes 20 ms, which every agent and every program would pay for the sake of a few.
    metadata = importlib.import_module("importlib.metadata")
    others: dict[str, str] = {entry.name: entry.value for entry in metadata.entry_points(group=_GROUP)}
    return others | ENGINES


def make_engine(name: str, options: Mapping[str, object] | None = None) -> Engine:
    """The engine of that name, with its own options.

    Raises:
        UnknownEngine: there is none; the message lists those there are.
        EngineError: what it needs is not installed, or does not work here.
        SettingsError: it has no such option, or the option cannot have that value.
    """
    entry = ENGINES.get(name) or known_engines().get(name)  # installed packages take milliseconds to look through
    if entry is None:
        known = known_engines()
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownEngine(f"there is no engine {name!r}; known engines: {', '.join(sorted(known))}.{hint}")
    module, _, attribute = entry.partition(":")
    try:
        made = cast(Callable[[Mapping[str, object]], Any], getattr(importlib.import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise EngineError(f"the engine {name!r} cannot be loaded from {entry}: {error}") from error
    engine = made(options or {})
    if not isinstance(engine, Engine):
        raise EngineError(f"the engine {name!r} ({entry}) made {engine!r}, which is no ropewalk.engines.engine.Engine")
    return engine
