"""Synthetic profiles in the shape of well-known models, for tests and measurements of partitioners without a model.

    line            layers in a row, with dense ones at the end (VGG)
    skips           blocks with a shortcut around them (ResNet)
    branches        modules of four branches (Inception): many legal cuts
    translation     an encoder and a decoder with attention that every layer of the decoder reads (GNMT)

Times and sizes are drawn from a seed, so that no two layers are alike; times are whole microseconds and sizes whole
bytes, so that PipeDream's `graph.txt` holds them exactly.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ropewalk.pipeline.profiles import Operator, Profile


class _Drawn:
    """A profile under construction."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.operators: list[Operator] = []
        self.edges: list[tuple[str, str]] = []

    def add(
        self, what: str, sources: Sequence[str], milliseconds: float, output_mb: float, parameters_mb: float = 0.0
    ) -> str:
        """Add an operator whose forward takes about `milliseconds`, and return its id."""
        id = f"node{len(self.operators) + 1}"

        def about(amount: float, unit: float) -> float:
            return int(amount * self._draw.uniform(0.8, 1.25) * unit)

        size_bytes = int(about(parameters_mb, 1e6))
        self.operators.append(
            Operator(
                id,
                what,
                forward_s=about(milliseconds, 1000) / 1e6,
                backward_s=about(1.8 * milliseconds, 1000) / 1e6,
                output_bytes=int(about(output_mb, 1e6)),
                parameters={f"{id}.parameters": size_bytes} if size_bytes else {},
            )
        )
        self.edges += [(source, id) for source in sources]
        return id

    def input(self) -> str:
        """An input of the model."""
        id = f"node{len(self.operators) + 1}"
        self.operators.append(Operator(id, f"Input{len(self.operators)}", is_input=True))
        return id

    def profile(self, model: str) -> Profile:
        """Return the profile of all operators that were added."""
        return Profile(tuple(self.operators), tuple(self.edges), model=model)


def line(layers: int = 12, seed: int = 0) -> Profile:
    """Make convolutions whose values shrink and weights grow, then two dense layers with most of the weights."""
    drawn = _Drawn(seed)
    last = drawn.input()
    for number in range(layers):
        depth = number / layers
        last = drawn.add("Conv2d", [last], 12 - 8 * depth, 60 * (1 - depth) + 2, 10 * depth)
        last = drawn.add("ReLU", [last], 0.4, 60 * (1 - depth) + 2)
    for _ in range(2):
        last = drawn.add("Linear", [last], 3, 0.5, 150)
    return drawn.profile("line")


def skips(blocks: int = 8, seed: int = 0) -> Profile:
    """Make blocks of three convolutions, each with a shortcut around it."""
    drawn = _Drawn(seed)
    last = drawn.add("Conv2d", [drawn.input()], 6, 50, 0.1)
    for number in range(blocks):
        depth = number / blocks
        inside = last
        for _ in range(3):
            inside = drawn.add("Conv2d", [inside], 5, 40 * (1 - 0.7 * depth), 1 + 6 * depth)
        around = drawn.add("Conv2d", [last], 2, 40 * (1 - 0.7 * depth), 0.5 + 3 * depth) if number % 3 == 0 else last
        last = drawn.add("Add", [inside, around], 0.3, 40 * (1 - 0.7 * depth))
    last = drawn.add("Linear", [last], 1, 0.4, 8)
    return drawn.profile("skips")


def branches(modules: int = 6, seed: int = 0) -> Profile:
    """Make modules of four branches of one to four convolutions, whose values are then joined."""
    drawn = _Drawn(seed)
    last = drawn.add("Conv2d", [drawn.input()], 8, 80, 0.1)
    for number in range(modules):
        depth = number / modules
        ends: list[str] = []
        for length in (1, 2, 4, 3):
            inside = last
            for _ in range(length):
                inside = drawn.add("Conv2d", [inside], 2.5, 20 * (1 - 0.6 * depth), 0.3 + 3 * depth)
            ends.append(inside)
        last = drawn.add("Concat", ends, 0.2, 60 * (1 - 0.6 * depth))
    last = drawn.add("Linear", [last], 1, 0.4, 8)
    return drawn.profile("branches")


def translation(layers: int = 3, seed: int = 0) -> Profile:
    """Make recurrent layers with shortcuts; all layers after the attention in the middle read its context."""
    drawn = _Drawn(seed)
    source, target = drawn.input(), drawn.input()
    last = drawn.add("Embedding", [source], 2, 6, 130)
    last = drawn.add("LSTM", [last], 6, 12, 67)
    for number in range(layers):
        inside = drawn.add("Dropout", [last], 0.1, 6)
        inside = drawn.add("LSTM", [inside], 3, 6, 34)
        kept = drawn.add("__getitem__(0)", [inside], 0, 6)
        drawn.add("__getitem__(1)", [inside], 0, 0.1)
        last = drawn.add("Add", [kept, last], 0.05, 6) if number else kept
    hidden = drawn.add("hidden", [], 0, 0)
    words = drawn.add("Embedding", [target], 0.3, 6, 130)
    state = drawn.add("__getitem__(0)", [hidden], 0, 0)
    attention = drawn.add("RecurrentAttention", [words, state, last], 12, 12, 42)
    last = drawn.add("__getitem__(0)", [attention], 0, 6)
    context = drawn.add("__getitem__(2)", [attention], 0, 0.1)
    for number in range(layers):
        inside = drawn.add("Dropout", [last], 0.1, 6)
        inside = drawn.add("Concat(2)", [inside, context], 0, 6)
        state = drawn.add(f"__getitem__({number + 1})", [hidden], 0, 0)
        inside = drawn.add("LSTM", [inside, state], 3.2, 6, 50)
        kept = drawn.add("__getitem__(0)", [inside], 0, 6)
        drawn.add("__getitem__(1)", [inside], 0, 0.1)
        last = drawn.add("Add", [kept, last], 0.05, 6) if number else kept
    drawn.add("Linear", [last], 5.6, 200, 132)
    return drawn.profile("translation")


MODEL_PROFILES = {"line": line, "skips": skips, "branches": branches, "translation": translation}
"""The function that makes each profile, by name."""
