"""Trained policies in one file: weights in the safetensors format, and how to make what they are weights of.

The file is data: nothing in it is unpickled or run. What its header names (agent, network, observations, actions) is
made from classes of this package alone; a network of your own is given to `load_policy` again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from ropewalk.atomic_files import replace_file
from ropewalk.errors import CheckpointCorrupt
from ropewalk.rl.agents.agent import Agent, NetworkFactory
from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.policies.policy import Policy
from ropewalk.rl.settings_text import NotSettings, from_json, to_json
from ropewalk.rl.variables import Variables

_KEY = "ropewalk policy"
_FORMAT = 1
_OF_LEARNERS = "optimizer", "critic_optimizer"
"""Settings that a policy has no use for; functions among them are left out."""


def save_policy(
    path: Path | str, agent: Agent, spec: EnvironmentSpec, network: NetworkFactory | None, variables: Variables
) -> None:
    """Write a policy to a file, which is complete or as it was before.

    Args:
        path: path of the file, such as "walker.safetensors".
        agent: makes the policy.
        spec: observations and actions of the environment, by shape and type.
        network: made its network; None: the agent's own.
        variables: its weights.

    Raises:
        OSError: the file cannot be written.
    """
    header = {
        "format": _FORMAT,
        "version": variables.version,
        "progress": variables.progress,
        "spec": to_json(spec),
        "agent": _json_or_words(_for_policies(agent)),
        "network": _json_or_words(network),
    }
    arrays = {name: np.array(array, order="C") for name, array in variables.arrays.items()}
    replace_file(Path(path), [save_tensors(arrays, {_KEY: json.dumps(header)})])


def load_policy(path: Path | str, *, agent: Agent | None = None, network: NetworkFactory | None = None) -> Policy:
    """Return the policy that `ExperimentResult.save` or `OfflineResult.save` wrote.

    Args:
        path: path of the file.
        agent: makes the policy; needed if it is a class of your own, otherwise the file says it.
        network: makes the network; needed if it is a function or a class of your own, otherwise the file says it.

    Raises:
        CheckpointCorrupt: this is not a file of a policy, or it is damaged.
        ValueError: the file cannot say what made the policy, and it is not given; or the weights are of another
            network.
    """
    content = Path(path).read_bytes()
    header = _header(path, content)
    maker: Agent = _made(path, header, "agent") if agent is None else agent
    if network is None and header["network"] is not None:
        network = _made(path, header, "network")
    spec = from_json(header["spec"])
    policy = maker.make_policy(spec, network)
    policy.spec = spec
    try:
        policy.load(Variables(header["version"], header["progress"], load_tensors(content)))
    except (LookupError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"the weights in {path} are not those of {maker} with the network {network}: {error!r}"
        ) from error
    return policy


def _for_policies(agent: Agent) -> Agent:
    """Return the agent without functions that only learners call."""
    left_out = {name: _default_of(agent, name) for name in _OF_LEARNERS if _is_function(getattr(agent, name, None))}
    return dataclasses.replace(agent, **left_out) if left_out else agent  # type: ignore[type-var]


def _default_of(agent: Agent, name: str) -> Any:
    return next(field.default for field in dataclasses.fields(agent) if field.name == name)  # type: ignore[arg-type]


def _is_function(value: object) -> bool:
    try:
        to_json(value)
    except NotSettings:
        return True
    return False


def _json_or_words(value: object) -> Any:
    """Return settings as JSON; what is not a setting, in words, for errors."""
    try:
        return to_json(value)
    except NotSettings:
        return {"words": repr(value)}


def _made(path: Path | str, header: Mapping[str, Any], part: str) -> Any:
    if "words" in header[part]:
        raise ValueError(
            f"the {part} of the policy in {path} was {header[part]['words']}, which a file cannot say how to make; "
            f"give it again: rl.load_policy({str(path)!r}, {part}=...)"
        )
    return from_json(header[part])


def _header(path: Path | str, content: bytes) -> dict[str, Any]:
    try:
        load_tensors(content)
        length = int.from_bytes(content[:8], "little")
        header: dict[str, Any] = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][_KEY])
    except (SafetensorError, ValueError, LookupError) as error:
        raise CheckpointCorrupt(
            f"{path} holds no policy, or is damaged ({error!r}); policies are written by ExperimentResult.save",
            path=str(path),
        ) from error
    if header["format"] != _FORMAT:
        raise ValueError(
            f"{path} has format {header['format']} of policies, and this version of Ropewalk reads format {_FORMAT}; "
            "use the version that wrote it, or a newer one"
        )
    return header


__all__ = ["load_policy", "save_policy"]
