"""The walker's terrain is what its record says, and the same in any process."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("Box2D")

from ropewalk.testing.walker_terrain import (
    FLAT,
    GROWTHS,
    Terrain,
    TerrainWalker,
    WalkerTerrains,
    lay_course,
)

STEP = 14 / 30
HARD: Terrain = {
    "roughness": 2.0,
    "pit_gap": [1.0, 2.0],
    "stump_height": [0.5, 1.0],
    "stump_float": [0.0, 0.0],
    "stair_height": [0.4, 0.8],
    "stair_steps": [2.0, 3.0],
    "stair_width": [4.0, 4.0],
}


def course(seed: int = 0, **changed: Any) -> Any:
    terrain: Any = FLAT | changed
    return lay_course(terrain, np.random.default_rng(seed))


def test_ground_without_roughness_and_obstacles_is_flat() -> None:
    flat = course()
    assert {y for _, y in flat.ground} == {flat.ground[0][1]} and flat.boxes == []
    assert flat.ground[-1][0] >= 200 * STEP


def test_rougher_ground_goes_further_up_and_down() -> None:
    heights = [np.ptp([y for _, y in course(roughness=roughness).ground]) for roughness in (0.5, 1.0, 4.0)]
    assert 0 < heights[0] < heights[1] < heights[2]


def test_the_start_is_always_flat() -> None:
    ground = lay_course(HARD, np.random.default_rng(3)).ground
    assert {y for x, y in ground if x <= 20 * STEP} == {ground[0][1]}


def test_pits_are_as_wide_as_the_record_says() -> None:
    ground = course(pit_gap=[1.0, 2.5]).ground
    floors = [right[0] - left[0] for left, right in pairwise(ground) if left[1] == right[1] < 2]
    assert len(floors) > 5 and all(STEP <= width <= 2.5 * STEP + 1e-9 for width in floors)
    assert np.ptp(floors) > 0.1


def test_stumps_stand_or_float_as_the_record_says() -> None:
    boxes = course(stump_height=[0.5, 1.5], stump_float=[2.0, 2.0]).boxes
    base = course().ground[0][1]
    assert len(boxes) > 5
    for left, bottom, right, top in boxes:
        assert np.isclose(right - left, STEP) and np.isclose(bottom - base, 2 * STEP)
        assert 0.5 * STEP - 1e-9 <= top - bottom <= 1.5 * STEP + 1e-9


def test_stairs_have_the_height_and_number_of_steps_that_the_record_says() -> None:
    ground = course(stair_height=[0.5, 0.5], stair_steps=[3.0, 3.0]).ground
    rises = [right[1] - left[1] for left, right in pairwise(ground) if left[0] == right[0]]
    assert len(rises) % 3 == 0 and np.allclose(np.abs(rises), 0.5 * STEP)
    assert {tuple(np.sign(rises[i : i + 3])) for i in range(0, len(rises), 3)} <= {(1, 1, 1), (-1, -1, -1)}


def test_a_child_grows_within_the_bounds_of_the_paper_and_stays_a_record() -> None:
    space, rng = WalkerTerrains(), np.random.default_rng(0)
    terrain = space.initial()
    for _ in range(300):
        before = json.dumps(terrain)
        child = space.mutate(terrain, rng)
        assert json.dumps(terrain) == before and json.loads(json.dumps(child)) == child
        assert 0 <= child["roughness"] <= 10 and abs(child["roughness"] - terrain["roughness"]) <= 0.61
        for name, growth in GROWTHS.items():
            if child[name]:
                low, high = child[name]
                assert growth.first[0] <= low <= high <= growth.most
                if terrain[name]:
                    assert np.abs(np.subtract(child[name], terrain[name])).max() <= growth.step + 1e-9
                else:
                    assert child[name] == list(growth.first)
        terrain = child
    assert space.vector(terrain).shape == (9,) and all(terrain[name] for name in GROWTHS)


def test_only_chosen_obstacles_appear() -> None:
    space, rng = WalkerTerrains(("pit",)), np.random.default_rng(0)
    terrain = space.initial()
    for _ in range(20):
        terrain = space.mutate(terrain, rng)
    assert terrain["pit_gap"] and (terrain | {"pit_gap": []}) == FLAT
    assert space.describe(terrain) == f"pit {terrain['pit_gap'][1]:g}"
    assert (space.vector(terrain) == 0).sum() >= 7


def test_unknown_obstacles_are_refused() -> None:
    with pytest.raises(ValueError, match="must be some of roughness, pit, stump, stair, not"):
        WalkerTerrains(("lava",))


def test_words_name_what_is_there() -> None:
    assert WalkerTerrains().describe(FLAT) == "flat"
    assert WalkerTerrains().describe(HARD) == "rough 2, pit 2, stump 1, stair 0.8"


def rewards(walker: Any, seed: int) -> list[float]:
    walker.reset(seed=seed)
    found, over = list[float](), False
    while not over and len(found) < 80:
        _, reward, over, _, _ = walker.step(np.sin(len(found) / 5 + np.arange(4)))
        found.append(float(reward))
    return found


def test_an_episode_is_the_same_whatever_was_walked_before() -> None:
    used = TerrainWalker(HARD)
    episodes = [rewards(used, seed) for seed in range(8)]
    assert episodes == [rewards(pickle.loads(pickle.dumps(TerrainWalker(HARD))), seed) for seed in range(8)]
    assert len({tuple(episode) for episode in episodes}) == 8


def test_a_stump_that_is_too_low_for_box2d_is_none() -> None:
    # One stump in eighty of a first range [0, 0.4] was so low that its corners became one: "area > b2_epsilon".
    terrain: Terrain = {**FLAT, "stump_height": [0.0, 0.004]}
    walker = TerrainWalker(terrain)
    walker.reset(seed=0)
    assert walker.course is not None and walker.course.boxes == []
    low: Terrain = {**FLAT, "stump_height": [0.022, 0.023]}
    TerrainWalker(low).reset(seed=0)


def test_an_episode_depends_on_the_terrain() -> None:
    assert rewards(TerrainWalker(HARD), 1) != rewards(TerrainWalker(FLAT), 1)


def test_what_is_laid_is_what_the_walker_stands_on() -> None:
    walker = TerrainWalker(HARD)
    walker.reset(seed=5)
    expected = walker.course
    assert expected is not None
    assert len(walker.terrain) == len(expected.boxes) + len(expected.ground) - 1
