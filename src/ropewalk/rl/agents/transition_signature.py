"""The columns of single transitions in replay, as `NStepAdder` makes them."""

from __future__ import annotations

from ropewalk.rl.environments.spec import ArraySpec, EnvironmentSpec


def transition_signature(spec: EnvironmentSpec) -> dict[str, ArraySpec]:
    """Return shape and dtype of each column of a transition."""
    return {
        **spec.observation_columns,
        **{f"next_{name}": array for name, array in spec.observation_columns.items()},
        "action": spec.action_array,
        "reward": ArraySpec(()),
        "discount": ArraySpec(()),
    }


__all__ = ["transition_signature"]
