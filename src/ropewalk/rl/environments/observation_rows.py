"""`ObservationRows`: the observations of single environments, put together."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from ropewalk.rl.environments.spec import Array, ArraySpec, EnvironmentSpec, Observation


class ObservationRows:
    """Makes arrays for the observations of N environments, and copies single observations into them.

    Args:
        spec: observations of one environment.
        num_envs: N.
    """

    def __init__(self, spec: EnvironmentSpec, num_envs: int) -> None:
        self._spec = spec.observation
        self._num_envs = num_envs

    def empty(self) -> Observation:
        """Return new arrays, shape (N, ...), not filled."""
        if isinstance(self._spec, Mapping):
            return {name: self._array(spec) for name, spec in self._spec.items()}
        return self._array(self._spec)

    def write(self, rows: Observation, env: int, observation: Any) -> None:
        """Copy what one environment returned into its row.

        Raises:
            ValueError: its shape differs from that of the observation space, where numpy would repeat smaller ones; or
                its dtype does, so that numpy would cut off digits; or it is no value of a Discrete space, which
                networks would take for another value or fail at.
        """
        if isinstance(rows, dict) and not isinstance(self._spec, ArraySpec):
            for name, spec in self._spec.items():
                try:
                    entry = observation[name]
                except (LookupError, TypeError):
                    self.check(observation)  # says which names there are
                    raise
                _write_row(rows[name], env, entry, spec, f"entry {name!r} of an observation")
        elif not isinstance(rows, dict) and isinstance(self._spec, ArraySpec):
            _write_row(rows, env, observation, self._spec, "an observation")

    def copy_row(self, source: Observation, target: Observation, env: int) -> None:
        """Copy one environment's row from one observation to another."""
        if isinstance(target, dict) and isinstance(source, dict):
            for name, array in target.items():
                array[env] = source[name][env]
        elif not isinstance(target, dict) and not isinstance(source, dict):
            target[env] = source[env]

    def check(self, observation: Any) -> None:
        """Check shape, kind and names of what one environment returned; called at each reset, not at each step.

        Raises:
            ValueError: it differs from the observation space.
        """
        if isinstance(self._spec, ArraySpec):
            _check_array(observation, self._spec, "an observation")
            return
        found = sorted(observation) if hasattr(observation, "keys") else type(observation).__name__
        if found != sorted(self._spec):
            raise ValueError(f"an observation has {found}, and the observation space has {sorted(self._spec)}")
        for name, spec in self._spec.items():
            _check_array(observation[name], spec, f"entry {name!r} of an observation")

    def _array(self, spec: ArraySpec) -> Array:
        return np.empty((self._num_envs, *spec.shape), spec.dtype)


def _write_row(rows: Array, env: int, array: Any, spec: ArraySpec, what: str) -> None:
    shape = np.shape(array)
    if shape != spec.shape:
        raise _mismatch(what, f"shape {shape}", f"shape {spec.shape}")
    dtype = getattr(array, "dtype", None)
    if dtype is not None and not _fits(dtype, spec.dtype):
        raise _mismatch(what, f"dtype {dtype}", f"dtype {spec.dtype}")
    if not shape and not spec.low <= array <= spec.high and spec.dtype.startswith(("int", "uint")):
        raise _mismatch(what, f"the value {array}", f"the values from {spec.low:g} to {spec.high:g}")
    rows[env] = array


def _check_array(array: Any, spec: ArraySpec, what: str) -> None:
    found = np.asarray(array)
    if found.shape != spec.shape or not _fits(found.dtype, spec.dtype):
        raise _mismatch(
            what, f"shape {found.shape} and dtype {found.dtype}", f"shape {spec.shape} and dtype {spec.dtype}"
        )


@functools.lru_cache(64)
def _fits(dtype: Any, to: str) -> bool:
    """Return whether numbers may be stored as another dtype. Asked in each step: numpy takes forty times as long."""
    return np.can_cast(dtype, to, "same_kind")


def _mismatch(what: str, found: str, space: str) -> ValueError:
    return ValueError(
        f"{what} has {found}, and the observation space has {space}; what the environment returns and its "
        "observation_space must agree"
    )


__all__ = ["ObservationRows"]
