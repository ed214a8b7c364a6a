"""What a pipeline must equal: plain PyTorch in one process, written without any of the code that it judges.

`MicroBatched` runs the micro-batches of each step one after the other on the whole model, and updates once.
`Stale` follows the formulas for pipelines without a flush (docs/theory.md, "Weight versions"): it keeps all versions of
all weights, and never sees a schedule.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Factory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Loss = Callable[[Any, Tensor], Tensor]


def cut(tensor: Tensor, num: int) -> list[Tensor]:
    """Pieces whose sizes differ by at most one."""
    return list(torch.tensor_split(tensor, num))


class MicroBatched:
    """One process, `num_pieces` micro-batches a step.

    Args:
        model: is trained in place.
        seed_of: the seed of a micro-batch, of (step, index).
        backwards: whether the last micro-batch goes backward first (GPipe).
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: Factory,
        num_pieces: int,
        *,
        seed_of: Callable[[int, int], int] = lambda step, index: 0,
        backwards: bool = False,
    ) -> None:
        self.model = model.train()
        self.loss = loss
        self.optimizer = optimizer([p for p in model.parameters() if p.requires_grad])
        self.num_pieces = num_pieces
        self.seed_of = seed_of
        self.backwards = backwards
        self.num_steps = 0

    def step(self, x: Tensor | tuple[Tensor, ...], y: Tensor) -> list[Tensor]:
        """Train on one mini-batch; gives the loss of each micro-batch."""
        xs = (x,) if isinstance(x, Tensor) else x
        num = min(self.num_pieces, len(y))
        pieces = list(zip(zip(*(cut(one, num) for one in xs), strict=True), cut(y, num), strict=True))
        losses: list[Tensor] = [torch.empty(())] * num
        norms = _Norms(self.model)
        for index in reversed(range(num)) if self.backwards else range(num):
            inputs, labels = pieces[index]
            torch.manual_seed(self.seed_of(self.num_steps, index))
            value = self.loss(self.model(*inputs), labels)
            (value * len(labels)).backward()
            losses[index] = value.detach()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= len(y)
        norms.commit()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.num_steps += 1
        return losses


class _Norms:
    """Running statistics over the whole step: kept back while micro-batches run, and set once at its end."""

    def __init__(self, model: nn.Module) -> None:
        self.seen: dict[nn.Module, list[tuple[int, Tensor, Tensor]]] = {}
        self.before: dict[nn.Module, dict[str, Tensor]] = {}
        self.hooks: list[Any] = []
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training and module.track_running_stats:
                self.seen[module] = []
                self.before[module] = {name: buffer.clone() for name, buffer in module.named_buffers()}
                self.hooks.append(module.register_forward_pre_hook(self.see))

    def see(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        (x,) = (one.detach() for one in inputs)
        mean, variance = (torch.zeros(x.shape[1], dtype=x.dtype, device=x.device) for _ in range(2))
        functional.batch_norm(x, mean, variance, training=True, momentum=1.0)
        self.seen[module].append((x.numel() // x.shape[1], mean.double(), variance.double()))

    def commit(self) -> None:
        for hook in self.hooks:
            hook.remove()
        for module, seen in self.seen.items():
            seen.sort(key=lambda one: one[0])
            count = sum(n for n, _, _ in seen)
            mean = sum((n / count * m for n, m, _ in seen), torch.zeros(()))
            within = sum(((n - 1) * v for n, _, v in seen), torch.zeros(()))
            between = sum((n * (m - mean) ** 2 for n, m, _ in seen), torch.zeros(()))
            before = self.before[module]
            num_batches = before["num_batches_tracked"] + 1
            momentum: Any = module.momentum
            factor = 1 / num_batches.item() if momentum is None else momentum
            new = {"running_mean": mean, "running_var": (within + between) / (count - 1)}
            for name, buffer in module.named_buffers():
                buffer.copy_(
                    num_batches if name not in new else (1 - factor) * before[name].double() + factor * new[name]
                )


class Stale:
    """Pipelines without a flush, by the formulas alone; plain SGD.

    Args:
        stages: names of the parameters of each stage.
        replicas: of each stage.
        version: for (stage, piece) the version of the weights that its forward and backward use.
        round_size: for each stage, how many pieces make an update.
        rates: the learning rate of each stage.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        stages: Sequence[Sequence[str]],
        version: Callable[[int, int], int],
        round_size: Sequence[int],
        rates: Sequence[float],
        seed_of: Callable[[int], int] = lambda piece: 0,
    ) -> None:
        self.model = model.train()
        self.loss = loss
        self.stages = stages
        self.version = version
        self.round_size = round_size
        self.rates = rates
        self.seed_of = seed_of
        start = {name: p.detach().clone() for name, p in model.named_parameters()}
        #: For each stage all versions of its weights.
        self.weights = [[{name: start[name] for name in names}] for names in stages]
        self.sums: list[dict[int, list[tuple[int, dict[str, Tensor]]]]] = [{} for _ in stages]
        self.num_pieces = 0
        self.losses: list[Tensor] = []

    def piece(self, x: Tensor, y: Tensor) -> None:
        """Forward, backward, and the updates that this piece completes."""
        piece = self.num_pieces
        self.num_pieces += 1
        leaves: dict[str, Tensor] = {}
        for stage, versions in enumerate(self.weights):
            bound = versions[self.version(stage, piece)]
            leaves |= {name: weight.clone().requires_grad_() for name, weight in bound.items()}
        torch.manual_seed(self.seed_of(piece))
        value = self.loss(torch.func.functional_call(self.model, leaves, (x,)), y)
        self.losses.append(value.detach())
        gradients = torch.autograd.grad(value * len(y), list(leaves.values()))
        by_name = dict(zip(leaves, gradients, strict=True))
        for stage, names in enumerate(self.stages):
            update = piece // self.round_size[stage]
            self.sums[stage].setdefault(update, []).append((len(y), {name: by_name[name] for name in names}))
            if len(self.sums[stage][update]) == self.round_size[stage]:
                self._update(stage, update)

    def drain(self) -> None:
        """A partial round is averaged over its members."""
        for stage, sums in enumerate(self.sums):
            for update in sorted(sums):
                self._update(stage, update)

    def _update(self, stage: int, update: int) -> None:
        members = self.sums[stage].pop(update)
        assert update == len(self.weights[stage]) - 1, "updates come in order"
        num_samples = sum(n for n, _ in members)
        new: dict[str, Tensor] = {}
        for name, weight in self.weights[stage][-1].items():
            total = members[0][1][name].clone()
            for _, gradients in members[1:]:
                total += gradients[name]
            new[name] = weight.add(total / num_samples, alpha=-self.rates[stage])
        self.weights[stage].append(new)

    @property
    def newest(self) -> dict[str, Tensor]:
        """The weights after all updates."""
        return {name: weight for versions in self.weights for name, weight in versions[-1].items()}


def lag(workers_after: int, replicas: int) -> int:
    """W_s."""
    return math.ceil(workers_after / replicas)


def trained_state(reference: MicroBatched) -> dict[str, dict[str, Any]]:
    """Parameters, buffers and state of the optimizer by name."""
    named = dict(reference.model.named_parameters())
    return {
        "parameters": {name: p.detach() for name, p in named.items()},
        "buffers": dict(reference.model.named_buffers()),
        "optimizer": {
            name: copy.copy(reference.optimizer.state[p]) for name, p in named.items() if p in reference.optimizer.state
        },
    }
