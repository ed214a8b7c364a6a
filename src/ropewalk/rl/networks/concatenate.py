"""`Concatenate`: a torso for each entry of observations that are dictionaries; their features are joined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ropewalk.rl.environments.spec import ArraySpec, EnvironmentSpec
from ropewalk.rl.networks.torso import ObservationTensor, State, Torso, TorsoFactory, as_torso


@dataclass(frozen=True)
class Concatenate:
    """Settings: which network reads which entry; called with a spec, it makes the torso.

        rl.Concatenate({"image": rl.NatureCNN(), "speed": rl.MLP((32,))})

    Args:
        networks: for each entry of the observation, what makes its torso. An entry that is not named is not read.
    """

    networks: Mapping[str, TorsoFactory]

    def __call__(self, spec: EnvironmentSpec) -> ConcatenateTorso:
        entries = dict[str, ArraySpec]() if isinstance(spec.observation, ArraySpec) else spec.observation
        if missing := [name for name in self.networks if name not in entries]:
            raise ValueError(
                f"observations have no entry {', '.join(missing)}; there are {', '.join(entries) or 'no entries'}"
            )
        inner = {name: EnvironmentSpec(entries[name], spec.action) for name in self.networks}
        return ConcatenateTorso({name: as_torso(self.networks[name](each), each) for name, each in inner.items()})


class ConcatenateTorso(Torso):
    """See `Concatenate`. The state of entry "image" has "image." before its names."""

    def __init__(self, torsos: Mapping[str, Torso]) -> None:
        super().__init__()
        self.torsos: nn.ModuleList = nn.ModuleList(torsos.values())
        self._parts = dict(torsos)
        self.features: int = sum(torso.features for torso in torsos.values())

    def initial_state(self, batch: int) -> State:
        """See `Torso`."""
        return {
            f"{name}.{key}": array
            for name, torso in self._parts.items()
            for key, array in torso.initial_state(batch).items()
        }

    def unroll(
        self, observation: ObservationTensor, first: Tensor, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, State]:
        """See `Torso`."""
        assert isinstance(observation, Mapping)
        features: list[Tensor] = []
        after: State = {}
        for name, torso in self._parts.items():
            start = f"{name}."
            own = {key.removeprefix(start): array for key, array in state.items() if key.startswith(start)}
            output, own = torso.unroll(observation[name], first, own)
            features.append(output)
            after.update({f"{name}.{key}": array for key, array in own.items()})
        return torch.cat(features, dim=-1), after


__all__ = ["Concatenate", "ConcatenateTorso"]
