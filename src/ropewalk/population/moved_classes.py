"""Reads pickles in earlier checkpoints, which name classes by their earlier modules and names."""

from __future__ import annotations

import io
import pickle
from typing import Any

_HERE = "ropewalk.population."

_MODULES = {
    "algorithms.dialect": "algorithms.adapter",
    "algorithms.dialects": "algorithms.adapters",
    "algorithms.evotorch_dialects": "algorithms.evotorch_adapters",
    "algorithms.outside": "algorithms.external",
    "broods": "ga_candidates",
    "held": "object_ref",
}
"""The present modules by the earlier ones, relative to this package."""

_NAMES = {
    ("algorithms.pbt_member", "Member"): "PBTMember",
    ("broods", "Brood"): "GACandidates",
    ("held", "Held"): "ObjectRef",
    ("open_ended.bouts", "Pair"): "AgentEnvPair",
}
"""The present names by the earlier module and name."""


class MovedClasses(pickle.Unpickler):
    """An unpickler that finds classes by their earlier names as well."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if module_name.startswith(_HERE):
            module = module_name.removeprefix(_HERE)
            global_name = _NAMES.get((module, global_name), global_name)
            module_name = _HERE + _MODULES.get(module, module)
        return super().find_class(module_name, global_name)


def loads_moved(data: bytes) -> Any:
    """Unpickle a value that a checkpoint holds, which runs code: use it only on files that this user has written."""
    return MovedClasses(io.BytesIO(data)).load()
