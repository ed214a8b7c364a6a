"""One model behind a parameter server, in four ways: synchronous, asynchronous, sharded and cached.

    python examples/parameter_server.py

Li et al.: Scaling Distributed Machine Learning with the Parameter Server, OSDI 2014.

    trainer 0 ── push(gradient) ──▶ ┌──────────────────┐
    trainer 1 ── push(gradient) ──▶ │ parameter server │     synchronous   a step waits for every gradient
    trainer 2 ── push(gradient) ──▶ └──────────────────┘     asynchronous  each gradient is a step
              ◀── pull() ──────────                          sharded       each server holds a part of the weights
                                                             cached        pull() is answered near the trainer

The model is logistic regression, each trainer has its own part of the data. The
synchronous way takes the steps that one process would take over all the data;
the others take steps from weights that are a little old, and arrive as well.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

import ropewalk as rw

TRAINERS, SHARDS, STEPS, RATE = 4, 2, 60, 1.0
SAMPLES_EACH, FEATURES = 300, 21


# --- The model --------------------------------------------------------------------------------------------------------


def samples(trainer: int) -> tuple[np.ndarray, np.ndarray]:
    """The trainer's part of the data: x (samples, features) and labels y of 0 and 1, a tenth of them wrong."""
    truth = np.random.default_rng(0).standard_normal(FEATURES)
    generator = np.random.default_rng([1, trainer])
    x = generator.standard_normal((SAMPLES_EACH, FEATURES))
    return x, (x @ truth > 0) ^ (generator.random(SAMPLES_EACH) < 0.1)


def probabilities(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x @ weights))


def gradient(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x.T @ (probabilities(weights, x) - y) / len(y)


def loss(weights: np.ndarray) -> float:
    """Mean cross-entropy over all the data; it is ln 2 = 0.693 for weights of zero."""
    x, y = (np.concatenate(parts) for parts in zip(*map(samples, range(TRAINERS)), strict=True))
    p = probabilities(weights, x)
    return float(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))


def train_here() -> np.ndarray:
    """The same model in one process, over all the data at once."""
    x, y = (np.concatenate(parts) for parts in zip(*map(samples, range(TRAINERS)), strict=True))
    weights = np.zeros(FEATURES)
    for _ in range(STEPS):
        weights = weights - RATE * gradient(weights, x, y)
    return weights


# --- The servers ------------------------------------------------------------------------------------------------------


class ParameterServer:
    """Weights, or one shard of them; every gradient is a step."""

    def __init__(self) -> None:
        node = rw.current_node()
        self._weights = np.array_split(np.zeros(FEATURES), node.replicas)[node.replica]
        self._num_pulls = 0

    def pull(self) -> np.ndarray:
        self._num_pulls += 1
        return self._weights

    def push(self, gradient: np.ndarray) -> None:
        # A new array, not `-=`: an answer that is still on its way may hold the old one.
        self._weights = self._weights - RATE / TRAINERS * gradient

    def num_pulls(self) -> int:
        return self._num_pulls


class SynchronousParameterServer:
    """Takes a step when every trainer has sent its gradient, and lets them wait until then."""

    def __init__(self) -> None:
        self._weights = np.zeros(FEATURES)
        self._gradients: dict[int, np.ndarray] = {}
        self._step, self._stepped = 0, threading.Condition()

    @rw.concurrent(TRAINERS)  # every trainer waits in its call, but the last one
    def exchange(self, trainer: int, gradient: np.ndarray) -> np.ndarray:
        with self._stepped:
            step = self._step
            self._gradients[trainer] = gradient
            if len(self._gradients) == TRAINERS:
                # In order of the trainers, not of arrival: float sums depend on it.
                mean = sum(self._gradients[i] for i in range(TRAINERS)) / TRAINERS
                self._weights = self._weights - RATE * mean
                self._gradients, self._step = {}, step + 1
                self._stepped.notify_all()
            rw.wait_for(self._stepped, lambda: self._step > step)
            return self._weights

    def pull(self) -> np.ndarray:
        return self._weights


# --- The trainers: one loop for each way ------------------------------------------------------------------------------


class Trainer:
    """What they share: a part of the data."""

    def __init__(self, server: rw.Client) -> None:
        self._server = server  # of one server, of its shards or of a cache, whatever handle was given
        self._me = rw.current_node().replica
        self._samples = samples(self._me)


class SynchronousTrainer(Trainer):
    """Sends a gradient and gets the weights of the next step."""

    def train(self) -> None:
        weights = self._server.pull()
        for _ in range(STEPS):
            weights = self._server.exchange(self._me, gradient(weights, *self._samples))


class AsynchronousTrainer(Trainer):
    """Waits for nobody."""

    def train(self) -> None:
        for _ in range(STEPS):
            self._server.push(gradient(self._server.pull(), *self._samples))


class ShardedTrainer(Trainer):
    """Talks to every shard at once: `server[i]` is the client of replica i."""

    def train(self) -> None:
        for _ in range(STEPS):
            weights = np.concatenate(self._server.all.pull())
            parts = np.array_split(gradient(weights, *self._samples), len(self._server))
            for sent in [self._server[i].push.future(part) for i, part in enumerate(parts)]:
                sent.result()


# --- The programs -----------------------------------------------------------------------------------------------------


def train(way: str, mode: rw.Mode | None) -> tuple[np.ndarray, int]:
    """Train in one of the four ways; returns the weights, and how often servers were asked for theirs."""
    program = rw.Program(f"parameter-server-{way}")
    server_class = SynchronousParameterServer if way == "synchronous" else ParameterServer
    server = program.add(rw.Service(server_class), name="server", replicas=SHARDS if way == "sharded" else 1)
    if way == "cached":
        # It passes `push` on and answers `pull` itself, with weights at most 2 ms old: their gradient points almost
        # where it should. For the trainers it is the server.
        server = program.add(rw.Cache(server, ttl_s=0.002, only=["pull"]), name="cache")
    trainer_class = {"synchronous": SynchronousTrainer, "sharded": ShardedTrainer}.get(way, AsynchronousTrainer)
    program.add(rw.Service(trainer_class, server), name="trainers", replicas=TRAINERS)

    with program.launch(mode=mode) as running:
        running.client("trainers").all.train()
        servers = running.client("server").all
        num_pulls = 0 if way == "synchronous" else sum(servers.num_pulls())
        return np.concatenate(servers.pull()), num_pulls


def main(mode: rw.Mode | None = None) -> dict[str, dict[str, Any]]:
    weights = train_here()
    results: dict[str, dict[str, Any]] = {"one process": {"weights": weights, "loss": loss(weights), "pulls": 0}}
    print(f"{'one process':12}  loss {loss(weights):.4f}  (at the start {loss(np.zeros(FEATURES)):.4f})")
    for way in ("synchronous", "asynchronous", "sharded", "cached"):
        started = time.monotonic()
        weights, num_pulls = train(way, mode)
        results[way] = {"weights": weights, "loss": loss(weights), "pulls": num_pulls}
        asked = f"  {num_pulls} pulls answered by servers" if num_pulls else "  the same weights, to rounding"
        print(f"{way:12}  loss {loss(weights):.4f}{asked}  {time.monotonic() - started:.1f} s")
    assert np.allclose(results["synchronous"]["weights"], results["one process"]["weights"], rtol=1e-9)
    return results


if __name__ == "__main__":
    main()
