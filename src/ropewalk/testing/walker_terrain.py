"""BipedalWalker on parametrised terrain, with roughness, pits, stumps and stairs, for POET.

Wang, Lehman, Clune, Stanley: Paired Open-Ended Trailblazer (POET), 2019 (https://arxiv.org/abs/1901.01753), section 4.1
and table 1, on Gymnasium's walker. Heights and lengths are in terrain steps of 0.47 m; `[least, most]` is the range
from which each obstacle draws its own, and an empty list means that there are no such obstacles.

        start      rough      pit       stump     stairs           finish
    ──────────────╱╲╱╲──────┐    ┌──────▉──────────┌──┐──╱╲─── ... ──|
                            └────┘               ┌─┘

    terrain, rng ─▶ lay_course (pure) ─▶ Course ─▶ TerrainWalker: bodies of Box2D

Needs `pip install "gymnasium[box2d]"`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypedDict

import numpy as np
from gymnasium.envs.box2d.bipedal_walker import (
    SCALE,
    TERRAIN_GRASS,
    TERRAIN_HEIGHT,
    TERRAIN_LENGTH,
    TERRAIN_STARTPAD,
    TERRAIN_STEP,
    BipedalWalker,
)
from gymnasium.utils import EzPickle
from numpy.typing import NDArray

Range = Literal["pit_gap", "stump_height", "stump_float", "stair_height", "stair_steps", "stair_width"]
"""The parameters that are ranges."""

_LEAST_STUMP_M = 0.01
"""Box2D merges corners that are closer than 2.5 mm, and refuses a polygon without an area."""
_PIT_DEPTH = 4  # steps: out of reach of the legs, as in Gymnasium


class Terrain(TypedDict):
    """The parameters of an environment, as they are sent to workers and saved in checkpoints."""

    roughness: float
    """0 is flat, 1 is as rough as the plain BipedalWalker."""
    pit_gap: list[float]
    stump_height: list[float]
    stump_float: list[float]
    """The height of stumps above the ground; 0 in the paper."""
    stair_height: list[float]
    """The height of one stair."""
    stair_steps: list[float]
    """The number of stairs of a staircase, whole numbers."""
    stair_width: list[float]
    """The width of one stair, whole numbers."""


FLAT: Terrain = {
    "roughness": 0.0,
    "pit_gap": [],
    "stump_height": [],
    "stump_float": [0.0, 0.0],
    "stair_height": [],
    "stair_steps": [],
    "stair_width": [4.0, 4.0],
}


@dataclass(frozen=True, slots=True)
class Growth:
    """The initial value and the changes of one range of a terrain: a row of table 1."""

    first: tuple[float, float]
    step: float
    most: float


GROWTHS: dict[Range, Growth] = {
    "pit_gap": Growth((0.0, 0.8), 0.4, 10.0),
    "stump_height": Growth((0.0, 0.4), 0.2, 5.0),
    "stair_height": Growth((0.0, 0.4), 0.2, 5.0),
    "stair_steps": Growth((1.0, 2.0), 1.0, 9.0),
}
OBSTACLES: dict[str, list[Range]] = {
    "roughness": [],
    "pit": ["pit_gap"],
    "stump": ["stump_height"],
    "stair": ["stair_height", "stair_steps"],
}
"""The ranges that change, by the obstacle that they belong to; the roughness is a number."""
_ROUGHER, _MOST_ROUGHNESS = 0.6, 10.0


class WalkerTerrains:
    """The environments of the paper, from flat ground on: an `EnvironmentSpace`.

    A child differs from its parent in the roughness and in each kind of obstacle with probability 1/2, and in at least
    one of these.

    Args:
        obstacles: the kinds that may appear: "roughness", "pit", "stump", "stair".
    """

    def __init__(self, obstacles: tuple[str, ...] = ("roughness", "pit", "stump", "stair")) -> None:
        unknown = [kind for kind in obstacles if kind not in OBSTACLES]
        if unknown or not obstacles:
            raise ValueError(f"obstacles must be some of {', '.join(OBSTACLES)}, not {obstacles!r}")
        self._obstacles = obstacles

    def initial(self) -> Terrain:
        """Return flat ground."""
        return copy.deepcopy(FLAT)

    def mutate(self, environment: Terrain, rng: np.random.Generator) -> Terrain:
        """Return a child: obstacles appear, or become a step of table 1 higher, lower, wider or narrower."""
        child = copy.deepcopy(environment)
        chosen = [kind for kind in self._obstacles if rng.random() < 0.5]
        for kind in chosen or [self._obstacles[rng.integers(len(self._obstacles))]]:
            if kind == "roughness":
                rougher = child["roughness"] + rng.uniform(-_ROUGHER, _ROUGHER)
                child["roughness"] = min(max(round(rougher, 1), 0.0), _MOST_ROUGHNESS)
            for name in OBSTACLES[kind]:
                child[name] = _grown(child[name], GROWTHS[name], rng)
        return child

    def vector(self, environment: Terrain) -> NDArray[np.float64]:
        """Return the parameters as a vector, for distances between terrains; absent obstacles count as 0."""
        ranges = [environment[name] or [0.0, 0.0] for name in GROWTHS]
        return np.array([environment["roughness"], *(value for bounds in ranges for value in bounds)])

    def describe(self, environment: Terrain) -> str:
        """Return a short name, such as "rough 0.6, pit 0.8", with the largest value of each kind of obstacle."""
        ranges = [(kind, environment[names[0]]) for kind, names in OBSTACLES.items() if names]
        parts = [f"{kind} {bounds[1]:g}" for kind, bounds in ranges if bounds]
        if environment["roughness"]:
            parts.insert(0, f"rough {environment['roughness']:g}")
        return ", ".join(parts) or "flat"


def _grown(bounds: list[float], growth: Growth, rng: np.random.Generator) -> list[float]:
    if not bounds:
        return list(growth.first)
    least, most = growth.first
    choices = [
        [low, high]
        for low in _moved(bounds[0], growth.step)
        for high in _moved(bounds[1], growth.step)
        if [low, high] != bounds and least <= low <= high and most <= high <= growth.most
    ]
    return choices[rng.integers(len(choices))]


def _moved(value: float, step: float) -> list[float]:
    return [round(value + change, 1) for change in (-step, 0.0, step)]


# The course


@dataclass(frozen=True, slots=True)
class Course:
    """The ground as a line from left to right, with upright parts, and boxes on or above it; in metres."""

    ground: list[tuple[float, float]]
    boxes: list[tuple[float, float, float, float]]
    """Left, bottom, right, top."""


class _Builder:
    def __init__(self, terrain: Terrain, rng: np.random.Generator) -> None:
        self.terrain = terrain
        self.rng = rng
        self.x, self.y, self._slope = 0.0, float(TERRAIN_HEIGHT), 0.0
        self.ground = [(self.x, self.y)]
        self.boxes: list[tuple[float, float, float, float]] = []

    def go(self, right: float, up: float = 0.0) -> None:
        """Extend the ground by a number of steps to the right, then upwards."""
        self.x += right * TERRAIN_STEP
        if right:
            self.ground.append((self.x, self.y))
        if up:
            self.y += up * TERRAIN_STEP
            self.ground.append((self.x, self.y))

    def flat(self, steps: int) -> None:
        for _ in range(steps):
            self.go(1)

    def grass(self) -> None:
        for _ in range(int(self.rng.integers(TERRAIN_GRASS // 2, TERRAIN_GRASS))):
            self._slope = 0.8 * self._slope + 0.01 * float(np.sign(TERRAIN_HEIGHT - self.y))
            self._slope += float(self.rng.uniform(-1, 1)) / SCALE
            self.x += TERRAIN_STEP
            self.y += self.terrain["roughness"] * self._slope
            self.ground.append((self.x, self.y))

    def pit(self) -> None:
        self.go(1, up=-_PIT_DEPTH)
        self.go(self._drawn("pit_gap"), up=_PIT_DEPTH)
        self.go(1)

    def stump(self) -> None:
        bottom = self.y + self._drawn("stump_float") * TERRAIN_STEP
        top = bottom + self._drawn("stump_height") * TERRAIN_STEP
        if top - bottom >= _LEAST_STUMP_M:
            self.boxes.append((self.x, bottom, self.x + TERRAIN_STEP, top))
        self.go(1)

    def stairs(self) -> None:
        direction = 1 if self.rng.random() > 0.5 else -1
        height, width = self._drawn("stair_height"), self._whole("stair_width")
        for _ in range(self._whole("stair_steps")):
            self.go(0, up=direction * height)
            self.flat(width)

    def _drawn(self, name: Range) -> float:
        least, most = self.terrain[name]
        return float(self.rng.uniform(least, most))

    def _whole(self, name: Range) -> int:
        least, most = self.terrain[name]
        return int(self.rng.integers(int(least), int(most) + 1))


def lay_course(terrain: Terrain, rng: np.random.Generator) -> Course:
    """Draw the course of one episode: a flat start, then alternately some ground and one obstacle."""
    builder = _Builder(terrain, rng)
    builder.flat(TERRAIN_STARTPAD)
    kinds: dict[Range, Callable[[], None]] = {
        "pit_gap": builder.pit,
        "stump_height": builder.stump,
        "stair_height": builder.stairs,
    }
    obstacles = [build for name, build in kinds.items() if terrain[name]]
    while builder.x < TERRAIN_LENGTH * TERRAIN_STEP:
        builder.grass()
        if obstacles:
            obstacles[int(rng.integers(len(obstacles)))]()
    return Course(builder.ground, builder.boxes)


_Untyped: Any = BipedalWalker
"""Gymnasium is only partly typed, and Box2D not at all."""


class TerrainWalker(_Untyped):
    """Gymnasium's BipedalWalker on a terrain; a seed gives the same course and episode in any process.

    Unlike its parent it begins each episode in a new Box2D world: the order of the contacts in an old world depends on
    earlier episodes, and with it the last bits of the physics.

    Args:
        terrain: the terrain.
        render_mode: as in Gymnasium.
    """

    def __init__(self, terrain: Terrain, render_mode: str | None = None) -> None:
        _Untyped.__init__(self, render_mode=render_mode)
        EzPickle.__init__(self, terrain, render_mode)
        self._record = copy.deepcopy(terrain)
        self.course: Course | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode on a new course."""
        self._destroy()
        self.world = type(self.world)()
        return _Untyped.reset(self, seed=seed, options=options)

    def _generate_terrain(self, hardcore: bool) -> None:
        course = self.course = lay_course(self._record, self.np_random)
        self.terrain: list[Any] = []
        for left, bottom, right, top in course.boxes:
            self.fd_polygon.shape.vertices = [(left, bottom), (right, bottom), (right, top), (left, top)]
            self._add_body(self.fd_polygon, (255, 255, 255), (153, 153, 153))
        self.terrain_poly: list[Any] = []
        for i, (start, end) in enumerate(pairwise(course.ground)):
            self.fd_edge.shape.vertices = [start, end]
            green = (76, 255 if i % 2 == 0 else 204, 76)
            self._add_body(self.fd_edge, green, green)
            self.terrain_poly.append(([start, end, (end[0], 0), (start[0], 0)], (102, 153, 76)))
        self.terrain.reverse()

    def _add_body(self, fixture: Any, color1: tuple[int, int, int], color2: tuple[int, int, int]) -> None:
        body: Any = self.world.CreateStaticBody(fixtures=fixture)
        body.color1, body.color2 = color1, color2
        self.terrain.append(body)
