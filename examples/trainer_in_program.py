"""A trainer inside a program: one node trains in a pipeline, another tries each checkpoint while training goes on.

    python examples/trainer_in_program.py

    coach ── Trainer ──▶ stage 0 ⇄ stage 1      processes of the trainer: they come and go with its `with` block
      │         └── save ──▶ folder ──┐
      └── examine(path) ──▶ examiner            has the test pictures, which those that train never see

A trainer is an ordinary object: whatever function makes one, in a node, in a task of a pool or in a script, gets the
processes for its stages from the engine of the program. Nodes live as long as the program, stages as long as the
training.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import ropewalk as rw

EPOCHS, BATCH, MICRO_BATCHES = 6, 128, 4


def digits() -> tuple[Tensor, Tensor]:
    """Pictures of 8 x 8 pixels, and what each shows."""
    found: Any = load_digits()
    return torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


class Examiner:
    """Says how good a checkpoint is."""

    def __init__(self) -> None:
        x, y = digits()
        self._x, self._y = x[::5], y[::5]

    @rw.method  # so that a type checker knows `.future` too; calling it needs no mark
    def examine(self, path: Path) -> float:
        model = rw.training.load_module(path, make_model()).eval()
        with torch.no_grad():
            return float((model(self._x).argmax(1) == self._y).float().mean())


class Coach:
    """Trains on what is not for tests, and has every epoch examined."""

    def __init__(self, examiner: Examiner) -> None:
        self._examiner: Any = examiner  # a client of it, rather
        x, y = digits()
        is_test = torch.arange(len(y)) % 5 == 0
        self._x, self._y = x[~is_test], y[~is_test]

    def train(self, folder: Path) -> list[float]:
        order = torch.Generator().manual_seed(0)
        examined: list[Any] = []
        with rw.Trainer(
            make_model(),
            F.cross_entropy,
            lambda parameters: torch.optim.Adam(parameters, 3e-3),
            plan=2,
            micro_batches=MICRO_BATCHES,
        ) as trainer:
            for _ in range(EPOCHS):
                for some in torch.randperm(len(self._y), generator=order).split(BATCH):
                    trainer.step(self._x[some], self._y[some])
                path = trainer.save(folder, keep=None).wait()
                examined.append(self._examiner.examine.future(path))  # goes on beside the next epoch
        return [one.result() for one in examined]


def main(mode: rw.Mode | None = None) -> list[float]:
    program = rw.Program("school")
    examiner = program.add(rw.Service(Examiner), name="examiner", preload=["torch"])
    program.add(rw.Service(Coach, examiner), name="coach", preload=["torch"])
    with program.launch(mode) as running, tempfile.TemporaryDirectory() as folder:
        found = running.client("coach").train(Path(folder))
    for epoch, accuracy in enumerate(found):
        print(f"epoch {epoch}: {accuracy:.1%} of the test right")
    return found


if __name__ == "__main__":
    main()
