"""Settings of agents and networks as JSON, and back: nothing but the classes named here is made from a file.

rl.MLP((64, 64))   ─▶   {"settings": "MLP", "hidden": {"tuple": [64, 64]}, "activation": "tanh", "layer_norm": false}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from ropewalk.rl.agents.a2c import A2C
from ropewalk.rl.agents.appo import APPO
from ropewalk.rl.agents.bc import BC
from ropewalk.rl.agents.dqn import DQN
from ropewalk.rl.agents.impala import IMPALA
from ropewalk.rl.agents.ppo import PPO
from ropewalk.rl.agents.r2d2 import R2D2
from ropewalk.rl.agents.rainbow import Rainbow
from ropewalk.rl.agents.sac import SAC
from ropewalk.rl.agents.td3 import TD3
from ropewalk.rl.environments.spec import (
    ArraySpec,
    ContinuousAction,
    DiscreteAction,
    EnvironmentSpec,
    MultiDiscreteAction,
)
from ropewalk.rl.learners.optimizers import TorchAdam, TorchRMSProp
from ropewalk.rl.learners.targets import Polyak, TargetCopy
from ropewalk.rl.networks.concatenate import Concatenate
from ropewalk.rl.networks.impala_cnn import ImpalaCNN
from ropewalk.rl.networks.lstm import LSTM
from ropewalk.rl.networks.mlp import MLP
from ropewalk.rl.networks.nature_cnn import NatureCNN
from ropewalk.rl.networks.normalisation import Normalised
from ropewalk.rl.schedules import LinearSchedule

Json: TypeAlias = Any
"""What the module `json` reads and writes."""

AGENTS = (A2C, APPO, BC, DQN, IMPALA, PPO, R2D2, Rainbow, SAC, TD3)
NETWORKS = (Concatenate, ImpalaCNN, LSTM, MLP, NatureCNN, Normalised)
_SPECS = (ArraySpec, ContinuousAction, DiscreteAction, EnvironmentSpec, MultiDiscreteAction)
_PARTS = (LinearSchedule, Polyak, TargetCopy, TorchAdam, TorchRMSProp)
KNOWN: dict[str, type[Any]] = {each.__name__: each for each in (*AGENTS, *NETWORKS, *_SPECS, *_PARTS)}
"""The classes that a file may name."""


class NotSettings(TypeError):
    """A value is neither a number, a text nor settings of this package, such as a function."""


def to_json(value: object) -> Json:
    """Return settings as what `json.dumps` takes.

    Raises:
        NotSettings: they contain something else, such as a function.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return {"tuple": [to_json(each) for each in cast("tuple[object, ...]", value)]}
    if isinstance(value, Mapping):
        return {"dict": {str(name): to_json(each) for name, each in cast("Mapping[str, object]", value).items()}}
    name = type(value).__name__
    if KNOWN.get(name) is not type(value) or not dataclasses.is_dataclass(value):
        raise NotSettings(f"{value!r} is not a settings object of ropewalk.rl")
    fields = {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return {"settings": name, **fields}


def from_json(saved: Json) -> Any:
    """Return the settings that `to_json` made this of.

    Raises:
        ValueError: it names a class that is not in `KNOWN`, a setting that the class does not have, or another value
            than the class allows.
    """
    if not isinstance(saved, dict):
        return saved
    entries = cast("dict[str, Json]", saved)
    if "tuple" in entries:
        return tuple(from_json(each) for each in entries["tuple"])
    if "dict" in entries:
        return {name: from_json(each) for name, each in entries["dict"].items()}
    name = entries.get("settings")
    if name not in KNOWN:
        raise ValueError(f"{name!r} is not a settings class; there are {', '.join(sorted(KNOWN))}")
    fields = {key: from_json(each) for key, each in entries.items() if key != "settings"}
    try:
        return KNOWN[name](**fields)
    except TypeError as error:
        raise ValueError(f"the settings of {name} are not those of this version: {error}") from error


__all__ = ["AGENTS", "KNOWN", "NETWORKS", "NotSettings", "from_json", "to_json"]
