"""Observations as tensors for networks."""

from __future__ import annotations

import pytest
import torch

from ropewalk.rl.environments.spec import ArraySpec, DiscreteAction, EnvironmentSpec
from ropewalk.rl.networks.concatenate import Concatenate
from ropewalk.rl.networks.impala_cnn import ImpalaCNN
from ropewalk.rl.networks.mlp import MLP
from ropewalk.rl.networks.nature_cnn import NatureCNN
from ropewalk.rl.networks.preprocessing import as_image, as_vector, image_shape, vector_size
from tests.rl.networks.specs import IMAGE, NAMED, VECTOR, random_observation


def spec_of(*shape: int, dtype: str = "uint8") -> EnvironmentSpec:
    return EnvironmentSpec(ArraySpec(shape, dtype, 0, 255), DiscreteAction(2))


def test_a_choice_becomes_one_hot_from_its_lowest_value() -> None:
    spec = ArraySpec((), "int64", 1, 3)
    assert vector_size(spec) == 3
    assert as_vector(torch.tensor([1, 3]), spec).tolist() == [[1, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize("spec", [ArraySpec((), "float32", 0, 3), ArraySpec((), "int64")])
def test_a_number_stays_a_number(spec: ArraySpec) -> None:
    assert vector_size(spec) == 1
    assert as_vector(torch.tensor([2, 3], dtype=getattr(torch, spec.dtype)), spec).tolist() == [[2], [3]]


def test_bytes_of_images_are_divided_and_other_bytes_are_not() -> None:
    image = torch.full((1, 2, 2, 1), 51, dtype=torch.uint8)
    torch.testing.assert_close(as_vector(image, ArraySpec((2, 2, 1), "uint8")), torch.full((1, 4), 0.2))
    torch.testing.assert_close(as_image(image, "last"), torch.full((1, 1, 2, 2), 0.2))
    ram = torch.full((1, 4), 51, dtype=torch.uint8)
    assert as_vector(ram, ArraySpec((4,), "uint8")).tolist() == [[51] * 4]
    assert as_image(torch.ones(1, 1, 2, 2, dtype=torch.bool), "first").unique().tolist() == [1.0]


def test_named_entries_are_joined_in_the_order_of_the_spec() -> None:
    observation = random_observation(NAMED, 5)
    assert isinstance(observation, dict) and isinstance(NAMED.observation, dict)
    vector = as_vector(dict(reversed(observation.items())), NAMED.observation)
    assert vector.shape == (5, vector_size(NAMED.observation)) == (5, 3 + 4 + 72)
    assert torch.equal(vector[:, :3], observation["speed"])
    assert torch.equal(vector[:, 3:7].argmax(-1), observation["cell"])


@pytest.mark.parametrize(
    ("shape", "channels", "expected"),
    [
        ((84, 84, 4), None, ("last", 4, 84, 84)),
        ((4, 84, 90), None, ("first", 4, 84, 90)),
        ((84, 90), None, ("first", 1, 84, 90)),
        ((6, 6, 6), "last", ("last", 6, 6, 6)),
        ((6, 6, 2), "first", ("first", 6, 6, 2)),
    ],
)
def test_channels_are_the_shorter_axis_unless_they_are_told(
    shape: tuple[int, ...], channels: str | None, expected: tuple[object, ...]
) -> None:
    assert image_shape(spec_of(*shape), "ImpalaCNN", channels) == expected  # pyright: ignore[reportArgumentType]


def test_channels_first_and_last_give_the_same_image() -> None:
    last = torch.randint(0, 256, (2, 5, 7, 3), dtype=torch.uint8)
    assert torch.equal(as_image(last, "last"), as_image(last.permute(0, 3, 1, 2), "first"))


@pytest.mark.parametrize(
    ("network", "spec", "message"),
    [
        (
            ImpalaCNN(),
            spec_of(6, 6, 6),
            r'cannot tell which axis of \(6, 6, 6\) has the channels; say channels="first"',
        ),
        (ImpalaCNN(), VECTOR, r"observations have shape \(4,\); use rl.MLP"),
        (ImpalaCNN(), NAMED, r"entries speed, cell, image; join networks with rl.Concatenate"),
        (NatureCNN(), spec_of(10, 10, 4), r"at least 36x36, not 10x10; use rl.ImpalaCNN"),
        (Concatenate({"picture": MLP()}), NAMED, r"no entry picture; there are speed, cell, image"),
        (Concatenate({"picture": MLP()}), VECTOR, r"no entry picture; there are no entries"),
    ],
)
def test_observations_that_do_not_fit_are_refused(network: MLP, spec: EnvironmentSpec, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        network(spec)


def test_the_smallest_image_of_the_nature_network_leaves_one_pixel() -> None:
    torso = NatureCNN(8)(IMAGE)
    assert torso(random_observation(IMAGE, 2)).shape == (2, 8)
    assert sum(parameter.numel() for parameter in NatureCNN()(spec_of(84, 84, 4)).parameters()) == 1_684_128


def test_unknown_activations_are_refused_with_the_near_one() -> None:
    with pytest.raises(ValueError, match=r"no activation 'rellu'; did you mean 'relu'\? There are elu, gelu"):
        MLP(activation="rellu")
    with pytest.raises(ValueError, match=r"at least one unit, but hidden is \(8, 0\)"):
        MLP((8, 0))
