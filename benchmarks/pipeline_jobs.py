"""What is trained in the benchmark of pipelines: an `nn.Sequential`, cut at the same places for everybody."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from sleeping import Sleeping
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.pipeline.plans import Plan, Stage, assemble
from ropewalk.pipeline.profiler import profile
from ropewalk.pipeline.profiles import Operator, Profile
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.tracing.tracer import trace

RATE = 1e-3


@dataclass(frozen=True)
class Job:
    """A model, its data, its cuts, and how it is trained: what all contenders do alike."""

    #: Layers, and a mini-batch of inputs and labels; the same ones in each call.
    make: Callable[[], tuple[Sequence[nn.Module], Tensor, Tensor]]
    #: Number of the first layer of each stage but the first.
    cuts: tuple[int, ...]
    schedule: str
    micro_batches: int
    #: Processes; with more stages than those they take turns, as interleaved schedules want it.
    num_workers: int

    @property
    def num_stages(self) -> int:
        return len(self.cuts) + 1

    def built(self) -> tuple[nn.Sequential, Tensor, Tensor]:
        layers, x, y = self.make()
        return nn.Sequential(*layers), x, y

    def stages(self, count: int) -> list[range]:
        """The layers of each stage."""
        bounds = [0, *self.cuts, count]
        return [range(begin, end) for begin, end in itertools.pairwise(bounds)]

    def with_micro_batches(self, number: int) -> Job:
        return replace(self, micro_batches=number)

    def with_schedule(self, name: str) -> Job:
        return replace(self, schedule=name)

    def profile(self, repeats: int = 1, concurrency: int = 1) -> Profile:
        """Of one micro-batch, measured."""
        model, x, _ = self.built()
        return profile(model, x[: len(x) // self.micro_batches], repeats=repeats, concurrency=concurrency)

    def plan(self, profile: Profile | None = None) -> Plan:
        """The same split as a plan of ours."""
        profile = profile or self.profile()
        schedule = make_schedule(self.schedule)
        stages = [
            Stage(
                number,
                tuple(operator.id for operator in profile.operators if _layer_of(operator) in span),
                (schedule.group_of(number, self.num_workers),),
            )
            for number, span in enumerate(self.stages(len(profile.operators)))
        ]
        return assemble(profile, stages, schedule=self.schedule, micro_batches=self.micro_batches)


def _layer_of(operator: Operator) -> int:
    """The layer that an operator, such as 3.linear:0 or 3:0, is of; inputs go to the first."""
    return 0 if operator.is_input else int(operator.id.partition(":")[0].partition(".")[0])


def mean_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of all jobs."""
    return functional.mse_loss(outputs, labels)


def mean_of(outputs: Tensor, labels: Tensor) -> Tensor:
    """A loss that costs next to nothing, for emulated devices."""
    return outputs[0, 0] - labels[0, 0]


# --- models -----------------------------------------------------------------------------------------------------------


def tiny(micro_batches: int = 8, schedule: str = "gpipe") -> Job:
    """8 layers Linear(8, 8), 8 samples in a micro-batch: all that it costs is what a call costs."""
    return Job(functools.partial(_linears, 8, 8, 8 * micro_batches, False), (4,), schedule, micro_batches, 2)


def mlp(
    schedule: str = "gpipe",
    *,
    width: int = 1024,
    depth: int = 8,
    batch: int = 256,
    micro_batches: int = 8,
    cuts: Sequence[int] | None = None,
    num_workers: int = 2,
) -> Job:
    """Linear layers and ReLU; as many layers in each stage, if no cuts are given. A layer is one of both."""
    make = functools.partial(_linears, width, depth, batch, True)
    return Job(make, tuple(cuts or (depth // 2,)), schedule, micro_batches, num_workers)


def transformer(
    schedule: str = "gpipe",
    *,
    width: int = 256,
    depth: int = 8,
    samples: int = 16,
    length: int = 32,
    micro_batches: int = 8,
    cuts: Sequence[int] | None = None,
    num_workers: int = 2,
) -> Job:
    """Encoder layers without dropout, 8 heads."""
    make = functools.partial(_encoders, width, depth, samples, length)
    return Job(make, tuple(cuts or (depth // 2,)), schedule, micro_batches, num_workers)


def cnn(schedule: str = "one_f_one_b", *, width: int = 32, samples: int = 64, micro_batches: int = 8) -> Job:
    """Four blocks of convolution, batch normalisation and ReLU, and four more at half of 32 x 32 pixels."""
    return Job(functools.partial(_convolutions, width, samples), (5,), schedule, micro_batches, 2)


def pointwise(schedule: str = "gpipe", *, depth: int = 8, micro_batches: int = 8) -> Job:
    """Layers that only read and write their activations of 4 MB, such as a transformer has between its products."""
    make = functools.partial(_pointwise, depth, 256 * micro_batches)
    return Job(make, (depth // 2,), schedule, micro_batches, 2)


def emulated(
    schedule: str,
    milliseconds: float,
    *,
    shares: Sequence[float],
    micro_batches: int = 32,
) -> Job:
    """A sleeping layer for each stage: F, I and W take `milliseconds` each, times its share; 1 MB activations."""
    make = functools.partial(_sleeping, milliseconds / 1e3, tuple(shares), micro_batches)
    return Job(make, tuple(range(1, len(shares))), schedule, micro_batches, len(shares))


def _linears(width: int, depth: int, batch: int, active: bool) -> tuple[list[nn.Module], Tensor, Tensor]:
    torch.manual_seed(0)
    layers = [nn.Linear(width, width) for _ in range(depth)]
    x, y = torch.randn(batch, width), torch.randn(batch, width)
    return [nn.Sequential(one, nn.ReLU()) if active else one for one in layers], x, y


def _encoders(width: int, depth: int, samples: int, length: int) -> tuple[list[nn.Module], Tensor, Tensor]:
    torch.manual_seed(0)
    layers: list[nn.Module] = [
        nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True) for _ in range(depth)
    ]
    return layers, torch.randn(samples, length, width), torch.randn(samples, length, width)


def _convolutions(width: int, samples: int) -> tuple[list[nn.Module], Tensor, Tensor]:
    torch.manual_seed(0)

    def block(before: int, after: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())

    layers = [block(3, width), *(block(width, width) for _ in range(3)), nn.MaxPool2d(2)]
    layers += [block(width, 2 * width), *(block(2 * width, 2 * width) for _ in range(3))]
    return layers, torch.randn(samples, 3, 32, 32), torch.randn(samples, 2 * width, 16, 16)


def _pointwise(depth: int, batch: int) -> tuple[list[nn.Module], Tensor, Tensor]:
    torch.manual_seed(0)
    width = 4096
    layers: list[nn.Module] = [nn.Sequential(nn.LayerNorm(width), nn.GELU()) for _ in range(depth)]
    return layers, torch.randn(batch, width), torch.randn(batch, width)


#: Rows and columns of 1 MB (2**20 bytes) of float32.
MEGABYTE = 256, 1024


def _sleeping(seconds: float, shares: Sequence[float], micro_batches: int) -> tuple[list[nn.Module], Tensor, Tensor]:
    rows, columns = MEGABYTE
    layers: list[nn.Module] = [Sleeping(*[seconds * share] * 3) for share in shares]
    x = torch.ones(rows * micro_batches, columns)
    return layers, x, torch.zeros(rows * micro_batches, 1)


def emulated_profile(job: Job) -> Profile:
    """The profile of sleeping layers: their nominal times, so that the simulator's step is the ideal one."""
    model, x, _ = job.built()
    skeleton = trace(model, (x[: len(x) // job.micro_batches],)).to_profile_skeleton()
    layers = iter(layer for layer in model if isinstance(layer, Sleeping))
    size = 4 * MEGABYTE[0] * MEGABYTE[1]

    def timed(operator: Operator) -> Operator:
        if operator.is_input:
            return operator
        forward_s, input_s, weight_s = next(layers).seconds
        return replace(
            operator,
            forward_s=forward_s,
            backward_s=input_s + weight_s,
            input_gradient_s=input_s,
            weight_gradient_s=weight_s,
            output_bytes=size,
            gradient_bytes=size,
        )

    return replace(skeleton, operators=tuple(timed(operator) for operator in skeleton.operators))
