"""Five real models, small enough for tests: each a function that returns model, example inputs, targets and loss.

Together they have what makes cutting hard: in-place activations, batch statistics, dropout, embeddings, tied weights,
skips that are long, short and joined, a branch on a shape, several inputs, inputs without a gradient. `width` makes the
operators heavier (for measurements), `batch` the micro-batch. The same arguments give the same weights and data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

Loss = Callable[[Tensor, Tensor], Tensor]


class RealModel(NamedTuple):
    """A model in train mode with one mini-batch; unpacks as `model, inputs, targets, loss`."""

    model: nn.Module
    inputs: tuple[Tensor, ...]
    targets: Tensor
    #: Mean over the samples.
    loss: Loss


def mlp(width: int = 32, batch: int = 8, depth: int = 4) -> RealModel:
    """Linear layers and activations, one of them in place: an `nn.Sequential`."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Linear(width, width), nn.Tanh()]
        for _ in range(depth - 2):
            layers += [nn.Linear(width, width), nn.ReLU(inplace=True)]
        model = nn.Sequential(*layers, nn.Linear(width, 10))
        return RealModel(model, (torch.randn(batch, width),), torch.randint(10, (batch,)), functional.cross_entropy)


class Transformer(nn.Module):
    """A language model: tokens to logits over the vocabulary."""

    def __init__(self, width: int, vocabulary: int, length: int, depth: int, dropout: float, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width) / 10)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        return self.head(self.norm(self.encoder(hidden)))


def transformer(
    width: int = 32, batch: int = 4, length: int = 16, depth: int = 2, dropout: float = 0.1, tied: bool = False
) -> RealModel:
    """An embedding, `nn.TransformerEncoder`, a head; `tied`: the head reads the weight of the embedding."""
    vocabulary = 64
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Transformer(width, vocabulary, length, depth, dropout, tied)
        tokens = torch.randint(vocabulary, (batch, length + 1))

    def loss(logits: Tensor, following: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), following.flatten())

    return RealModel(model, (tokens[:, :-1].contiguous(),), tokens[:, 1:].contiguous(), loss)


class Residual(nn.Module):
    """A basic block of a ResNet: two convolutions beside a short skip, activations in place."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride > 1 or channels_in != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.norm1(self.conv1(x)))
        x = self.norm2(self.conv2(x))
        x += identity
        return self.relu(x)


class ResNet(nn.Module):
    """A stem, four residual blocks, a head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.layer1 = nn.Sequential(Residual(width, width, 1), Residual(width, width, 1))
        self.layer2 = nn.Sequential(Residual(width, 2 * width, 2), Residual(2 * width, 2 * width, 1))
        self.average = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.pool(self.relu(self.norm1(self.conv1(images))))
        x = self.layer2(self.layer1(x))
        return self.head(torch.flatten(self.average(x), 1))


def resnet(width: int = 8, batch: int = 4, size: int = 16) -> RealModel:
    """A ResNet-like classifier of images of `size` x `size`."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        images = torch.randn(batch, 3, size, size)
        return RealModel(ResNet(width), (images,), torch.randint(10, (batch,)), functional.cross_entropy)


def _double(channels_in: int, channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Down, across and up again, a long skip at each resolution, a branch on the shape where they join."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down1 = _double(3, width)
        self.down2 = _double(width, 2 * width)
        self.bottom = _double(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.join2 = _double(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join1 = _double(2 * width, width)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        skip1 = self.down1(images)
        skip2 = self.down2(functional.max_pool2d(skip1, 2))
        x = self.bottom(functional.max_pool2d(skip2, 2))
        x = self.join2(self._join(self.up2(x), skip2))
        return self.head(self.join1(self._join(self.up1(x), skip1)))

    def _join(self, x: Tensor, skip: Tensor) -> Tensor:
        if x.shape[-1] != skip.shape[-1]:  # the image's size does not halve
            x = functional.pad(x, (0, skip.shape[-1] - x.shape[-1], 0, skip.shape[-2] - x.shape[-2]))
        return torch.cat([skip, x], dim=1)


def unet(width: int = 8, batch: int = 2, size: int = 18) -> RealModel:
    """A U-Net-like net that labels each pixel; 18 pixels halve once, so the upper join is without a pad."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        images, labels = torch.randn(batch, 3, size, size), torch.randint(2, (batch, size, size))
        return RealModel(UNet(width), (images,), labels, functional.cross_entropy)


class TwoBranches(nn.Module):
    """An image and a vector, each through layers of its own, joined late."""

    def __init__(self, width: int, features: int, size: int) -> None:
        super().__init__()
        side = -(-size // 4)  # halved twice, rounded up
        self.look = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1),
            nn.BatchNorm2d(width),
            nn.GELU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1, padding_mode="reflect", groups=2),
            nn.GELU(),
            nn.Flatten(),
        )
        self.read = nn.Sequential(
            nn.Linear(features, 8 * width), nn.LayerNorm(8 * width), nn.SiLU(), nn.Linear(8 * width, width), nn.SiLU()
        )
        self.join = nn.Linear(width * side**2 + width, 4 * width)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(4 * width, 1)

    def forward(self, image: Tensor, vector: Tensor) -> Tensor:
        joined = torch.cat([self.look(image), self.read(vector)], dim=1)
        return self.head(self.dropout(functional.relu(self.join(joined))))


def two_branches(width: int = 8, batch: int = 4, size: int = 12) -> RealModel:
    """A convolutional branch and a linear one that join before the head; a regression."""
    features = 3 * width
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inputs = torch.randn(batch, 3, size, size), torch.randn(batch, features)
        return RealModel(TwoBranches(width, features, size), inputs, torch.randn(batch, 1), functional.mse_loss)


#: All of them by name, for tests that run over the family.
MODELS: dict[str, Callable[..., RealModel]] = {
    "mlp": mlp,
    "transformer": transformer,
    "resnet": resnet,
    "unet": unet,
    "two_branches": two_branches,
}
