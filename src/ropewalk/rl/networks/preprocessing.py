"""Observations as float32 tensors: flat vectors for perceptrons, (B, C, H, W) images for convolutions.

observation                              as a vector                            as an image
uint8 with three axes                    divided by 255, flat                   divided by 255, channels first
integer without axes, 0 to n-1           one-hot                                refused
anything else                            float32, flat                          float32, channels first
several by name                          joined, in the order of the spec       refused
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from ropewalk.rl.environments.spec import ArraySpec, EnvironmentSpec
from ropewalk.rl.networks.torso import ObservationTensor

Channels: TypeAlias = Literal["first", "last"]


def vector_size(spec: ArraySpec | Mapping[str, ArraySpec]) -> int:
    """Return the number of entries that `as_vector` returns."""
    if not isinstance(spec, ArraySpec):
        return sum(vector_size(entry) for entry in spec.values())
    return _num_choices(spec) or math.prod(spec.shape)


def as_vector(observation: ObservationTensor, spec: ArraySpec | Mapping[str, ArraySpec]) -> Tensor:
    """Return observations as vectors.

    Args:
        observation: shape (B, ...).
        spec: shapes and types of the observations.

    Returns:
        float32, shape (B, vector_size(spec)).
    """
    if not isinstance(spec, ArraySpec):
        assert isinstance(observation, Mapping)
        return torch.cat([as_vector(observation[name], entry) for name, entry in spec.items()], dim=-1)
    assert isinstance(observation, Tensor)
    if num := _num_choices(spec):
        return torch.nn.functional.one_hot(observation.long() - int(spec.low), num).float()
    flat = observation.flatten(1) if spec.shape else observation.unsqueeze(-1)
    return flat.float() / 255.0 if is_image(spec) else flat.float()


def is_image(spec: ArraySpec) -> bool:
    """Whether observations are bytes with three axes, which are divided by 255."""
    return spec.dtype == "uint8" and len(spec.shape) == 3


def has_images(spec: ArraySpec | Mapping[str, ArraySpec]) -> bool:
    """Whether observations, or some of their entries, have three axes or more, as images with channels have."""
    entries = (spec,) if isinstance(spec, ArraySpec) else spec.values()
    return any(len(entry.shape) >= 3 for entry in entries)


def image_shape(spec: EnvironmentSpec, network: str, channels: Channels | None) -> tuple[Channels, int, int, int]:
    """Return where the channels of an image are, and its channels, height and width.

    Channels are the shorter one of the first and the last axis; an image without channels has one.

    Args:
        spec: its observation has two or three axes.
        network: named in errors.
        channels: where they are, if that is to be told rather than found out.

    Raises:
        ValueError: the observations are no images, or the axis of the channels cannot be told.
    """
    observation = spec.observation
    if not isinstance(observation, ArraySpec):
        raise ValueError(
            f"{network} takes one image, but observations have the entries {', '.join(observation)}; join networks "
            f'with rl.Concatenate({{"{next(iter(observation))}": rl.{network}(), ...}})'
        )
    shape = observation.shape
    if len(shape) == 2:
        return "first", 1, *shape
    if len(shape) != 3:
        raise ValueError(f"{network} takes images with 2 or 3 axes, but observations have shape {shape}; use rl.MLP")
    if channels is None and shape[0] == shape[2]:
        raise ValueError(
            f'{network} cannot tell which axis of {shape} has the channels; say channels="first" or channels="last"'
        )
    if channels == "first" or (channels is None and shape[0] < shape[2]):
        return "first", *shape
    return "last", shape[2], shape[0], shape[1]


def as_image(observation: Tensor, channels: Channels) -> Tensor:
    """Return observations as float32 images, shape (B, C, H, W); bytes are divided by 255."""
    if observation.ndim == 3:
        observation = observation.unsqueeze(1)
    elif channels == "last":
        observation = observation.permute(0, 3, 1, 2)
    image = observation.float()
    return image / 255.0 if observation.dtype == torch.uint8 else image


def _num_choices(spec: ArraySpec) -> int:
    """The number of values of an observation that is one of several; 0 if it is a number or an array."""
    if spec.shape or not spec.dtype.startswith(("int", "uint")) or not math.isfinite(spec.high - spec.low):
        return 0
    return int(spec.high - spec.low) + 1


__all__ = ["Channels", "as_image", "as_vector", "has_images", "image_shape", "is_image", "vector_size"]
