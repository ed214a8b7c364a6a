"""Trained policies in one file: weights in the safetensors format, and how to make what they are weights of.

The file is data: nothing in it is unpickled or run. What its header names (agent, network, observations, actions) is
made from classes of this package alone; a network of your own is given to `load_policy` again.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from ropewalk.atomic_files import replace_file
from ropewalk.errors import CheckpointCorrupt
from ropewalk.rl.agents.agent import Agent, NetworkFactory
from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.policies.policy import Policy
from ropewalk.rl.settings_text import AGENTS, NETWORKS, NotSettings, from_json, to_json
from ropewalk.rl.variables import Variables

_KEY = "ropewalk policy"
_FORMAT = 1
_OF_LEARNERS = "optimizer", "critic_optimizer"
"""Settings that a policy has no use for; functions among them are left out."""


class _OtherFormat(Exception):
    """The file was written by another version."""


class _Header(msgspec.Struct, frozen=True):
    """What a file says of its policy."""

    format: int
    version: int
    progress: float
    spec: dict[str, Any]
    agent: dict[str, Any]
    network: dict[str, Any] | None


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
    maker: Agent = _made(path, header.agent, "agent", AGENTS) if agent is None else agent
    named = network
    if network is None and header.network is not None:
        named = _made(path, header.network, "network", NETWORKS)
    spec: EnvironmentSpec = _made(path, header.spec, "spec", (EnvironmentSpec,))
    variables = Variables(header.version, header.progress, load_tensors(content))
    try:
        if agent is None and network is None:
            _check_sizes(maker, spec, named, variables)
        policy = maker.make_policy(spec, named)
        policy.spec = spec
        policy.load(variables)
    except (LookupError, ValueError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"the weights in {path} are not those of {maker} with the network {named}: {error!r}"
        ) from error
    return policy


def _check_sizes(maker: Agent, spec: EnvironmentSpec, network: NetworkFactory | None, variables: Variables) -> None:
    """Check that the network which a file names has as many weights as the file, before memory is taken for it.

    Raises:
        LookupError, ValueError, RuntimeError, TypeError: it has not.
    """
    import torch  # a policy needs it, and this module does not

    with warnings.catch_warnings(), torch.device("meta"):  # tensors with a shape, and without memory
        warnings.simplefilter("ignore")
        maker.make_policy(spec, network).load(variables)


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


def _made(path: Path | str, saved: dict[str, Any], part: str, kinds: tuple[type[Any], ...]) -> Any:
    if "words" in saved:
        raise ValueError(
            f"the {part} of the policy in {path} was {saved['words']}, which a file cannot say how to make; "
            f"give it again: rl.load_policy({str(path)!r}, {part}=...)"
        )
    try:
        made = from_json(saved)
    except RecursionError as error:
        raise _corrupt(path, error) from error
    if not isinstance(made, kinds):
        raise ValueError(f"the {part} of the policy in {path} is {made!r:.80}")
    return made


def _header(path: Path | str, content: bytes) -> _Header:
    try:
        load_tensors(content)
        length = int.from_bytes(content[:8], "little")
        text = json.loads(content[8 : 8 + length])["__metadata__"][_KEY]
        header: dict[str, Any] = json.loads(text)
        if isinstance(header, dict) and header.get("format", _FORMAT) != _FORMAT:
            raise _OtherFormat(header["format"])
        return msgspec.convert(header, _Header)
    except _OtherFormat as other:
        raise ValueError(
            f"{path} has format {other} of policies, and this version of Ropewalk reads format {_FORMAT}; "
            "use the version that wrote it, or a newer one"
        ) from None
    except (SafetensorError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise _corrupt(path, error) from error


def _corrupt(path: Path | str, error: Exception) -> CheckpointCorrupt:
    return CheckpointCorrupt(
        f"{path} holds no policy, or is damaged ({error!r:.200}); policies are written by ExperimentResult.save",
        path=str(path),
    )


__all__ = ["load_policy", "save_policy"]
