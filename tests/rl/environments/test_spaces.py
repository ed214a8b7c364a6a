from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from ropewalk.rl.environments.spaces import spec_of_spaces
from ropewalk.rl.environments.spec import (
    ArraySpec,
    ContinuousAction,
    DiscreteAction,
    EnvironmentSpec,
    MultiDiscreteAction,
)

BOX = spaces.Box(-1, 1, (3,), np.float32)


@pytest.mark.parametrize(
    ("space", "spec"),
    [
        (BOX, ArraySpec((3,), "float32", -1, 1)),
        (spaces.Box(-1, 1, (3,), np.float64), ArraySpec((3,), "float32", -1, 1)),
        (spaces.Box(0, 255, (84, 84, 4), np.uint8), ArraySpec((84, 84, 4), "uint8", 0, 255)),
        (spaces.Box(np.array([-1, -2]), np.array([5, 5]), dtype=np.float32), ArraySpec((2,), "float32", -np.inf, 5)),
        (spaces.Box(-1, 1, (), np.float32), ArraySpec((), "float32", -1, 1)),
        (spaces.Discrete(4, start=2), ArraySpec((), "int64", 2, 5)),
        (spaces.MultiDiscrete([3, 3]), ArraySpec((2,), "int64", 0, 2)),
        (spaces.MultiDiscrete([3, 4]), ArraySpec((2,), "int64", 0, np.inf)),
        (spaces.MultiBinary((2, 2)), ArraySpec((2, 2), "int64", 0, 1)),
    ],
    ids=str,
)
def test_observations_become_specs(space: Any, spec: ArraySpec) -> None:
    assert spec_of_spaces(space, spaces.Discrete(2)).observation == spec


def test_a_dictionary_has_a_spec_for_each_name() -> None:
    space = spaces.Dict({"image": spaces.Box(0, 1, (2, 2)), "door": spaces.Discrete(2)})
    assert spec_of_spaces(space, spaces.Discrete(2)) == EnvironmentSpec(
        {"image": ArraySpec((2, 2), "float32", 0, 1), "door": ArraySpec((), "int64", 0, 1)}, DiscreteAction(2)
    )


@pytest.mark.parametrize(
    ("space", "spec"),
    [
        (spaces.Discrete(4, start=-2), DiscreteAction(4)),
        (spaces.MultiDiscrete(np.array([[3, 4], [5, 6]])), MultiDiscreteAction((3, 4, 5, 6))),
        (spaces.MultiBinary(3), MultiDiscreteAction((2, 2, 2))),
        (spaces.Box(-1, 2, (2,)), ContinuousAction((-1, -1), (2, 2))),
        (
            spaces.Box(np.array([[-1, -3]]), np.array([[1, 4]]), dtype=np.float64),
            ContinuousAction((-1, -3), (1, 4)),
        ),
    ],
    ids=str,
)
def test_actions_become_specs(space: Any, spec: Any) -> None:
    assert spec_of_spaces(BOX, space).action == spec
    assert all(type(num) in (int, float) for num in vars_of(spec))


def vars_of(spec: Any) -> list[Any]:
    values = [getattr(spec, name) for name in spec.__slots__]
    return [num for value in values for num in (value if isinstance(value, tuple) else (value,))]


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (spaces.Tuple([BOX, BOX]), spaces.Discrete(2), "the observation space is Tuple.*FlattenObservation"),
        (spaces.Text(5), spaces.Discrete(2), "the observation space is Text.*TransformObservation"),
        (spaces.Dict({"a": spaces.Dict({"b": BOX})}), spaces.Discrete(2), "entry 'a' of the observation space is Dict"),
        (spaces.Dict({}), spaces.Discrete(2), "without entries"),
        (BOX, spaces.Box(-np.inf, 1, (1,)), "without finite bounds.*TransformAction"),
        (BOX, spaces.Box(0, 5, (1,), np.int32), "bounded Box of floating point"),
        (BOX, spaces.Dict({"a": BOX}), "the action space is Dict.*TransformAction"),
        (BOX, 2, "the action space is 2; actions are Discrete"),
        (BOX, spaces.Box(-1, 1, (0,)), r"the action space is Box\(.*without entries; an action has at least one"),
        (BOX, spaces.MultiDiscrete(np.zeros(0, np.int64)), "the action space is MultiDiscrete.*without entries"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_spaces_are_refused_with_what_helps(observation: Any, action: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec_of_spaces(observation, action)
