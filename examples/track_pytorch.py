"""A plain PyTorch script whose runs are kept: numbers, settings, code, checkpoints, and an image.

    python examples/track_pytorch.py
    ropewalk runs list
    ropewalk runs pause RUN       from another terminal: it writes a checkpoint and ends
    ropewalk runs continue RUN    it goes on after that step
    ropewalk runs fork RUN --set lr=0.001 --from 3

Nothing else of Ropewalk is used here, and no process is started. The lines with `run` are all there is to it.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import ropewalk as rw


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pictures and what they show, to train and to test with; every fifth is for tests."""
    found: Any = load_digits()
    x, y = torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target)
    is_test = torch.arange(len(y)) % 5 == 0
    return x[~is_test], y[~is_test], x[is_test], y[is_test]


def main() -> float:
    parser = argparse.ArgumentParser(description="Learn to read digits, and keep what happened.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--rest", type=float, default=0.0, help="seconds after each epoch, to have time to pause it")
    options = parser.parse_args()

    torch.manual_seed(0)
    train_x, train_y, test_x, test_y = digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    accuracy = 0.0
    policy = rw.tracking.CheckpointPolicy(keep=3, best="validation/accuracy")
    with rw.track("digits", config={"lr": options.lr, "epochs": options.epochs}, seed=0, checkpoints=policy) as run:
        # The settings are read from the run, because `ropewalk runs fork --set` changes them there.
        optimizer = torch.optim.Adam(model.parameters(), run.config["lr"])
        if (saved := run.restore()) is not None:  # the run was paused, or is a fork of another one
            model.load_state_dict(saved.state["model"])
            optimizer.load_state_dict(saved.state["optimizer"])
        for epoch in run.steps(run.config["epochs"]):
            for some in torch.randperm(len(train_x)).split(64):
                loss = F.cross_entropy(model(train_x[some]), train_y[some])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            accuracy = float((model(test_x).argmax(1) == test_y).float().mean())
            run.log(loss=loss)
            run.log(accuracy=accuracy, group="validation")
            run.checkpoint({"model": model, "optimizer": optimizer})
            print(f"epoch {epoch}: loss {loss.item():.3f}, {accuracy:.1%} of the test right", flush=True)
            time.sleep(options.rest)
        run.image("weights", model[0].weight.detach().abs())
        print(f"kept as {run.name}: ropewalk runs show {run.id}")
    return accuracy


if __name__ == "__main__":
    main()
