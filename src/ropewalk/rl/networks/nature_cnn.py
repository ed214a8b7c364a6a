"""`NatureCNN`: the convolutional network of Mnih et al., Human-level control through deep reinforcement learning, 2015.

Three convolutions (32 of 8x8 by 4, 64 of 4x4 by 2, 64 of 3x3 by 1) and 512 units, all followed by ReLU.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.networks.initialisation import orthogonal
from ropewalk.rl.networks.preprocessing import Channels, as_image, image_shape
from ropewalk.rl.networks.torso import FeedForwardTorso

_LEAST = 36
"""The smallest height and width that leave one pixel."""


@dataclass(frozen=True)
class NatureCNN:
    """Settings of the network for 84x84 images; called with a spec, it makes the torso.

    Mnih et al., Human-level control through deep reinforcement learning, 2015.

    Bytes are divided by 255. Channels are the shorter one of the first and the last axis of an observation.

    Args:
        features: units of the last layer.
        channels: "first" or "last", where that cannot be told from the shape.
    """

    features: int = 512
    channels: Channels | None = None

    def __call__(self, spec: EnvironmentSpec) -> NatureCNNTorso:
        return NatureCNNTorso(self, spec)


class NatureCNNTorso(FeedForwardTorso):
    """See `NatureCNN`."""

    def __init__(self, settings: NatureCNN, spec: EnvironmentSpec) -> None:
        super().__init__()
        self.channels: Channels
        self.channels, planes, height, width = image_shape(spec, "NatureCNN", settings.channels)
        if min(height, width) < _LEAST:
            raise ValueError(
                f"NatureCNN needs images of at least {_LEAST}x{_LEAST}, not {height}x{width}; use rl.ImpalaCNN, which "
                "takes images of any size, or a network of your own"
            )
        rows, columns = (((side - 8) // 4 + 1 - 4) // 2 + 1 - 2 for side in (height, width))
        self.body: nn.Sequential = nn.Sequential(
            orthogonal(nn.Conv2d(planes, 32, 8, 4)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(32, 64, 4, 2)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(64, 64, 3, 1)),
            nn.ReLU(),
            nn.Flatten(),
            orthogonal(nn.Linear(64 * rows * columns, settings.features)),
            nn.ReLU(),
        )
        self.features: int = settings.features

    def forward(self, observation: Tensor) -> Tensor:
        """Return features, shape (B, F), of images, shape (B, ...)."""
        return self.body(as_image(observation, self.channels))


__all__ = ["NatureCNN", "NatureCNNTorso"]
