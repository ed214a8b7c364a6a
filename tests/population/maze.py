"""A maze that deceives: what lies nearest to the goal as the crow flies is a dead end."""

from __future__ import annotations

import math

import numpy as np

from ropewalk.population.outcome import Outcome

DRAWING = (
    "###########",
    "#....G....#",
    "#.........#",
    "#.#######.#",
    "#.#.....#.#",
    "#.#.....#.#",
    "#.#.....#.#",
    "#.#.....#.#",
    "#....S....#",
    "###########",
)
#: Of a controller: speed to the right and down, each linear in where it is.
DIM = 6
_STEPS = 40
_STRIDE = 0.5  # shorter than a wall is thick: nobody steps through


def _place(mark: str) -> tuple[float, float]:
    row = next(row for row, line in enumerate(DRAWING) if mark in line)
    return DRAWING[row].index(mark) + 0.5, row + 0.5


START, GOAL = _place("S"), _place("G")


def arrived(outcome: Outcome) -> bool:
    return outcome.fitness > -1


def walk(parameters: np.ndarray) -> Outcome:
    """Walks until it is at the goal or time is up, along walls that are in the way; how near it ends, and where."""
    right_x, right_y, right, down_x, down_y, down = parameters.tolist()
    x, y = START
    for _ in range(_STEPS):
        at_x, at_y = (x - START[0]) / 4, (y - START[1]) / 4
        next_x = x + _STRIDE * min(1.0, max(-1.0, right_x * at_x + right_y * at_y + right))
        next_y = y + _STRIDE * min(1.0, max(-1.0, down_x * at_x + down_y * at_y + down))
        if DRAWING[int(y)][int(next_x)] != "#":
            x = next_x
        if DRAWING[int(next_y)][int(x)] != "#":
            y = next_y
        if abs(x - GOAL[0]) + abs(y - GOAL[1]) < 1:
            break
    return Outcome(-math.hypot(x - GOAL[0], y - GOAL[1]), behaviour=np.array([x, y]))
