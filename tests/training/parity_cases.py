"""Cases for `test_parity`: models that have what is hard to cut, plans of every schedule, and one run of each two ways.

Trees   nn.Sequential: between its children go dictionaries with tensors of other kinds, None, numbers and texts, and
        tensors whose shapes follow the numbers, so that they change from micro-batch to micro-batch
Skips   traced by torch.export: several inputs, masks, values that are read stages later, a tied embedding
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.pipeline.plans import Plan
from ropewalk.pipeline.schedules import SCHEDULES, make_schedule
from ropewalk.pipeline.stages.losses import Declared
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.pipeline.tracing.trees import tensors_of
from tests.pipeline.played_plans import even_cut, plan_of

# --- models -----------------------------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """What `Spread` has found beside the numbers themselves."""

    narrow: Tensor
    places: Tensor
    positive: Tensor


class Spread(nn.Module):
    """Makes a tree of one tensor."""

    def forward(self, x: Tensor) -> dict[str, Any]:
        # As many columns as the numbers of this micro-batch say.
        width = 3 + int(x.detach().sum() > 0)
        y = torch.tanh(x)
        return {
            "y": y,
            "again": (y, y[:, ::2]),
            "parts": [Parts(x[:, :width] * 2, x.detach().argmax(1), x.detach() > 0)],
            "turned": x.t().sin().t(),
            "short": x.detach().bfloat16(),
            "empty": x[:, :0],
            "nothing": None,
            "width": width,
            "is_wide": width > 3,
            "half": 0.5,
            "kind": "spread",
        }


class Mix(nn.Module):
    """Computes on the tree, and gives another one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.places = nn.Embedding(8, 8)

    def forward(self, tree: dict[str, Any]) -> tuple[Any, ...]:
        (parts,) = tree["parts"]
        assert isinstance(parts, Parts) and parts.narrow.shape[1] == tree["width"] and tree["empty"].shape[1] == 0
        assert tree["nothing"] is None and tree["kind"] == "spread" and tree["short"].dtype is torch.bfloat16
        whole, some = tree["again"]
        y = self.layer(tree["y"]) * tree["half"] + whole.square() + functional.pad(some, (0, 4)) + tree["turned"]
        y = y + self.places(parts.places) + tree["short"].float()
        return y, parts.narrow.sin(), ~parts.positive, tree["is_wide"] is True, None, [tree["width"]]


class Join(nn.Module):
    """Makes one tensor of it again."""

    def forward(self, tree: tuple[Any, ...]) -> Tensor:
        x, narrow, negative, is_wide, _, (width,) = tree
        x = x + functional.pad(narrow, (0, x.shape[1] - width))
        return x.masked_fill(negative, 0.25) if is_wide else x * 1.5


def trees() -> nn.Sequential:
    """Dropout, batch normalisation of both kinds, and trees between."""
    return nn.Sequential(
        nn.Linear(8, 8),
        nn.Dropout(0.2),
        Spread(),
        Mix(),
        Join(),
        nn.BatchNorm1d(8),
        nn.Tanh(),
        nn.Linear(8, 8),
        nn.Dropout(0.3),
        nn.BatchNorm1d(8, momentum=None),
        nn.Linear(8, 8, bias=False),
        nn.ReLU(),
        nn.Linear(8, 3),
    )


class Skips(nn.Module):
    """Tokens and a mask to logits; the embedding is read at both ends, and two values far from where they are made."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.25)
        self.norm = nn.LayerNorm(8)
        self.third = nn.Linear(16, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        skip = torch.tanh(self.first(self.embedding(tokens)))
        x = self.dropout(functional.gelu(self.second(skip)))
        x = self.norm(x.cumsum(1) * mask.unsqueeze(-1))
        x = self.third(torch.cat([x, skip], dim=-1))
        return self.head(self.dropout(x) + skip)


def masked(logits: Tensor, labels: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The sum over what the mask leaves, and how many these are."""
    losses = functional.cross_entropy(logits.flatten(0, 1), labels["tokens"].flatten(), reduction="none")
    weights = labels["mask"].flatten()
    return (losses * weights).sum(), weights.sum()


# --- mini-batches -----------------------------------------------------------------------------------------------------


def of_features(size: int, generator: torch.Generator) -> tuple[Any, Any]:
    """Samples of eight numbers in three classes."""
    return torch.randn(size, 8, generator=generator), torch.randint(3, (size,), generator=generator)


def of_tokens(size: int, generator: torch.Generator) -> tuple[Any, Any]:
    """Texts of five tokens, masked here and there; the mask goes in, and to the loss."""
    tokens = torch.randint(11, (size, 6), generator=generator)
    mask = (torch.rand(size, 5, generator=generator) < 0.8).float()
    mask[:, 0] = 1
    return (tokens[:, :-1].contiguous(), mask), {"tokens": tokens[:, 1:].contiguous(), "mask": mask}


class Subject(NamedTuple):
    """A model with its mini-batches and its loss."""

    model: Callable[[], nn.Module]
    batch: Callable[[int, torch.Generator], tuple[Any, Any]]
    loss_fn: Callable[[Any, Any], Any]
    loss: Declared
    #: A micro-batch may have one sample, which batch normalisation refuses.
    takes_one: bool


SUBJECTS = {
    "trees": Subject(trees, of_features, functional.cross_entropy, "mean", False),
    "skips": Subject(Skips, of_tokens, masked, "weighted", True),
}


@cache
def graph_of(subject: str) -> ModelGraph:
    """Its graph, made once; training changes nothing of it."""
    made = SUBJECTS[subject]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = made.model()
    return trace(model, made.batch(4, torch.Generator().manual_seed(2))[0])


# --- optimizers -------------------------------------------------------------------------------------------------------


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.05, momentum=0.9)


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 5e-3, weight_decay=1e-3)


OPTIMIZERS = {"sgd": sgd, "adam": adam}


def falling(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


# --- cases ------------------------------------------------------------------------------------------------------------

Recompute = Literal["never", "every_other", "always"]


@dataclass(frozen=True, slots=True)
class Case:
    """One training: what, and how it is laid out."""

    schedule: str
    #: Groups of devices; stages are twice as many under schedules that want two for each.
    num_groups: int
    #: Of each group, or of all alike.
    replicas: int | tuple[int, ...]
    subject: str
    optimizer: str
    recompute: Recompute = "every_other"
    num_steps: int = 13
    clip_norm: float | None = None
    lr_schedule: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None
    lr_scale: Literal["pipedream"] | None = None
    #: Some mini-batches have NaN, and no update follows from them.
    skips_nan: bool = False
    #: The number of steps after which the pipeline is emptied, and goes on.
    drains_after: int = 8
    #: Of the processes; the local executor takes none.
    snapshot_every: int | None = None

    def __str__(self) -> str:
        what = [f"{self.num_groups} groups x {self.replicas}", self.subject, self.optimizer]
        what += [f"recompute {self.recompute}"] if self.recompute != "every_other" else []
        what += ["NaN skipped"] if self.skips_nan else []
        what += [f"norm at most {self.clip_norm}"] if self.clip_norm is not None else []
        what += ["rates fall"] if self.lr_schedule is not None else []
        what += [f"rates of {self.lr_scale}"] if self.lr_scale is not None else []
        what += [f"snapshots every {self.snapshot_every} steps"] if self.snapshot_every is not None else []
        return f"{self.schedule}, {', '.join(what)}"

    @property
    def micro_batches(self) -> int:
        """Four, or as few as the schedule takes."""
        if not isinstance(self.replicas, int):
            return 5
        workers = self.num_groups * self.replicas
        least = {
            "pipedream_2bw": workers,
            "interleaved": -(-4 // workers) * workers,
            "zb_h2": 2 * workers - self.replicas,
            "zb_v": 2 * workers,
        }
        return max(4, least.get(self.schedule, 0))

    @property
    def plan(self) -> Plan:
        """The model in stages of as many operators as possible alike."""
        graph = graph_of(self.subject)
        schedule = make_schedule(self.schedule)
        num_stages = self.num_groups * schedule.stages_per_worker
        again = {
            "never": lambda stage: False,
            "always": lambda stage: True,
            "every_other": lambda stage: stage % 2 == 0,
        }
        return plan_of(
            graph,
            even_cut(graph, num_stages),
            schedule=self.schedule,
            micro_batches=self.micro_batches,
            replicas=self.replicas,
            recompute=[again[self.recompute](stage) for stage in range(num_stages)],
            devices=[schedule.group_of(stage, self.num_groups) for stage in range(num_stages)],
        )

    @property
    def sizes(self) -> Sequence[int]:
        """Samples of each mini-batch: most do not divide, and some have fewer than there are micro-batches."""
        m = self.micro_batches
        sizes = [(3 * m, 3 * m - 1, 2 * m + 1)[step % 3] for step in range(self.num_steps)]
        takes_few = self.schedule in ("gpipe", "one_f_one_b", "pipedream", "pipedream_2bw")
        if SUBJECTS[self.subject].takes_one and takes_few:
            sizes[5::7] = [m - 1] * len(sizes[5::7])
        return sizes

    @property
    def admitted(self) -> list[int | Literal["drain"]]:
        """What is admitted, as the records must show it."""
        found: list[int | Literal["drain"]] = []
        for step, size in enumerate(self.sizes):
            found.append(min(size, self.micro_batches))
            if size < self.micro_batches or step + 1 == self.drains_after:
                found.append("drain")
        found.append("drain")
        return [one for one in found if one != "drain" or not SCHEDULES[self.schedule].flushes]

    def batches(self) -> list[tuple[Any, Any]]:
        """The same each time."""
        generator = torch.Generator().manual_seed(3)
        found = [SUBJECTS[self.subject].batch(size, generator) for size in self.sizes]
        for x, _ in found[4::6] if self.skips_nan else ():
            next(one for one in tensors_of(x) if one.is_floating_point())[0] = torch.nan
        return found
