from __future__ import annotations

import numpy as np

from ropewalk.rl.environments.spec import ArraySpec, ContinuousAction, EnvironmentSpec
from ropewalk.rl.policies.action_scaling import ActionScaling

SCALING = ActionScaling.for_spec(EnvironmentSpec(ArraySpec((3,)), ContinuousAction((-2.0, 0.0), (2.0, 10.0))), "SAC")


def test_the_canonical_bounds_are_those_of_the_environment() -> None:
    canonical = np.array([[-1, -1], [0, 0], [1, 1], [0.5, -0.5]], np.float32)
    action = SCALING.to_environment(canonical)
    np.testing.assert_array_equal(action, np.array([[-2, 0], [0, 5], [2, 10], [1, 2.5]], np.float32))
    np.testing.assert_array_equal(SCALING.to_canonical(action), canonical)


def test_actions_outside_of_the_bounds_count_as_at_the_bounds() -> None:
    np.testing.assert_array_equal(SCALING.to_canonical(np.array([[3.0, -1.0]])), [[1, -1]])


def test_what_is_scaled_is_not_changed_in_place() -> None:
    action = np.array([[3.0, -1.0]], np.float32)
    SCALING.to_canonical(action)
    SCALING.to_environment(action)
    np.testing.assert_array_equal(action, [[3, -1]])
