"""`LSTM`: memory over the features of another torso, reset where an episode begins.

Hochreiter and Schmidhuber, Long short-term memory, 1997. Steps between two resets run as one call of torch's LSTM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.networks.torso import ObservationTensor, State, Torso, TorsoFactory, as_torso, reset_state


@dataclass(frozen=True)
class LSTM:
    """Settings of a long short-term memory; called with a spec, it makes the torso.

    Weights are orthogonal with gain 1, biases 0; the state at the beginning of an episode is 0. It is called "hidden"
    and "cell", shape (B, units) each; the state of an inner torso with memory has "inner." before its names.

    Args:
        inner: makes the torso whose features it remembers, such as `rl.MLP((64,))`.
        units: size of its state, which is also the number of its features.
    """

    inner: TorsoFactory
    units: int = 128

    def __post_init__(self) -> None:
        if self.units < 1:
            raise ValueError(f"an LSTM needs at least one unit, not {self.units}")

    def __call__(self, spec: EnvironmentSpec) -> LSTMTorso:
        return LSTMTorso(as_torso(self.inner(spec), spec), self.units)


class LSTMTorso(Torso):
    """See `LSTM`."""

    def __init__(self, inner: Torso, units: int) -> None:
        super().__init__()
        self.inner = inner
        self.memory: nn.LSTM = nn.LSTM(inner.features, units)
        for name, parameter in self.memory.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter, 1.0)
            else:
                nn.init.zeros_(parameter)
        self.features = units

    def initial_state(self, batch: int) -> State:
        """See `Torso`."""
        zeros = torch.zeros(batch, self.features, device=next(self.memory.parameters()).device)
        inner = {f"inner.{name}": array for name, array in self.inner.initial_state(batch).items()}
        return {"hidden": zeros, "cell": zeros.clone(), **inner}

    def unroll(
        self, observation: ObservationTensor, first: Tensor, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, State]:
        """See `Torso`."""
        self.memory.flatten_parameters()  # a copied network's are apart, which cuDNN warns of; free if they are not
        inner_state = {name.removeprefix("inner."): array for name, array in state.items() if name.startswith("inner.")}
        inputs, inner_state = self.inner.unroll(observation, first, inner_state)
        memory: State = {"hidden": state["hidden"], "cell": state["cell"]}
        zeros = {name: torch.zeros_like(array) for name, array in memory.items()}
        outputs: list[Tensor] = []
        resets = [bool(reset) for reset in first.any(dim=1).cpu()]
        for start, end in _segments(resets):
            if resets[start]:
                memory = reset_state(memory, zeros, first[start])
            output, (hidden, cell) = self.memory(
                inputs[start:end], (memory["hidden"].unsqueeze(0), memory["cell"].unsqueeze(0))
            )
            memory = {"hidden": hidden.squeeze(0), "cell": cell.squeeze(0)}
            outputs.append(output)
        return torch.cat(outputs), {**memory, **{f"inner.{name}": array for name, array in inner_state.items()}}


def _segments(resets: list[bool]) -> list[tuple[int, int]]:
    """Runs of steps, start and end, within which no environment begins an episode except at the start."""
    starts = [step for step, reset in enumerate(resets) if reset or step == 0]
    return list(zip(starts, [*starts[1:], len(resets)], strict=True))


__all__ = ["LSTM", "LSTMTorso"]
