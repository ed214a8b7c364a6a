"""The picture has each elite's fitness where its behaviour is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="draws pictures; pip install matplotlib")

from ropewalk.population.archives.cvt_archive import CVTArchive
from ropewalk.population.archives.grid_archive import GridArchive
from ropewalk.population.pictures.heat_map import draw_heat_map, heat

RANGES = [(0.0, 1.0), (0.0, 10.0)]


def test_a_grid_is_drawn_with_the_first_number_to_the_right(tmp_path: Path) -> None:
    archive = GridArchive((2, 3), RANGES)
    archive.add([[0.0]], [5.0], [[0.9, 1.0]])
    figure = draw_heat_map(archive, tmp_path / "map.png", labels=("speed", "height"))
    axes = figure.axes[0]
    drawn = axes.images[0].get_array()
    assert drawn is not None and drawn.shape == (3, 2)
    np.testing.assert_array_equal(np.ma.filled(drawn, np.nan), [[np.nan, 5], [np.nan, np.nan], [np.nan, np.nan]])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("speed", "height")
    assert axes.get_title() == "17% of 6 niches, QD score 5"
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_voronoi_cells_are_drawn_around_their_centroids() -> None:
    archive = CVTArchive(3, RANGES, centroids=[[0.25, 2.5], [0.75, 2.5], [0.5, 9.0]])
    archive.add([[0.0], [1.0]], [5.0, 7.0], [[0.2, 1.0], [0.5, 8.0]])
    places = heat(archive)
    side = len(places)
    assert places[side // 10, side // 10] == 5
    assert np.isnan(places[side - 1, 0])
    assert places[side // 2, side - 1] == 7
    draw_heat_map(archive, fitness_range=(0, 10))


def test_other_than_two_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="two axes, and the behaviours of this archive 1 numbers"):
        draw_heat_map(GridArchive((2,), [(0, 1)]))
