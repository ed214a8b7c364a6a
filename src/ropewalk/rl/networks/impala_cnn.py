"""`ImpalaCNN`: the residual network of Espeholt et al., IMPALA, 2018 (https://arxiv.org/abs/1802.01561), figure 3.

Each stage: convolution 3x3, max pooling 3x3 by 2, two residual blocks of two convolutions. Then ReLU and 256 units.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.networks.initialisation import orthogonal
from ropewalk.rl.networks.preprocessing import Channels, as_image, image_shape
from ropewalk.rl.networks.torso import FeedForwardTorso


@dataclass(frozen=True)
class ImpalaCNN:
    """Settings of the residual network for images of any size; called with a spec, it makes the torso.

    Espeholt et al., IMPALA, 2018 (https://arxiv.org/abs/1802.01561), figure 3.

    Bytes are divided by 255. Channels are the shorter one of the first and the last axis of an observation.

    Args:
        depths: convolutions of each stage; each stage halves height and width.
        features: units of the last layer.
        channels: "first" or "last", where that cannot be told from the shape.
    """

    depths: tuple[int, ...] = (16, 32, 32)
    features: int = 256
    channels: Channels | None = None

    def __call__(self, spec: EnvironmentSpec) -> ImpalaCNNTorso:
        return ImpalaCNNTorso(self, spec)


class ImpalaCNNTorso(FeedForwardTorso):
    """See `ImpalaCNN`."""

    def __init__(self, settings: ImpalaCNN, spec: EnvironmentSpec) -> None:
        super().__init__()
        self.channels: Channels
        self.channels, planes, height, width = image_shape(spec, "ImpalaCNN", settings.channels)
        stages: list[nn.Module] = []
        for depth in settings.depths:
            stages += [_Stage(planes, depth)]
            planes, height, width = depth, (height + 1) // 2, (width + 1) // 2
        self.stages: nn.Sequential = nn.Sequential(*stages)
        self.head: nn.Linear = orthogonal(nn.Linear(planes * height * width, settings.features))
        self.features: int = settings.features

    def forward(self, observation: Tensor) -> Tensor:
        """Return features, shape (B, F), of images, shape (B, ...)."""
        planes = torch.relu(self.stages(as_image(observation, self.channels)))
        return torch.relu(self.head(planes.flatten(1)))


class _Stage(nn.Module):
    def __init__(self, planes: int, depth: int) -> None:
        super().__init__()
        self.convolution = orthogonal(nn.Conv2d(planes, depth, 3, padding=1))
        self.pooling = nn.MaxPool2d(3, 2, padding=1)
        self.blocks = nn.Sequential(_Residual(depth), _Residual(depth))

    def forward(self, planes: Tensor) -> Tensor:
        return self.blocks(self.pooling(self.convolution(planes)))


class _Residual(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.first = orthogonal(nn.Conv2d(depth, depth, 3, padding=1))
        self.second = orthogonal(nn.Conv2d(depth, depth, 3, padding=1))

    def forward(self, planes: Tensor) -> Tensor:
        return planes + self.second(torch.relu(self.first(torch.relu(planes))))


__all__ = ["ImpalaCNN", "ImpalaCNNTorso"]
