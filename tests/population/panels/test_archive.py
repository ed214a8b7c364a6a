"""The panel "archive" has the fitness of each elite in the bin of its behaviour."""

from __future__ import annotations

import numpy as np
import pytest

from ropewalk.population.archives.cvt_archive import CVTArchive
from ropewalk.population.archives.grid_archive import GridArchive
from ropewalk.population.panels.archive import ArchivePanel


def test_the_bins_of_a_grid_are_its_niches() -> None:
    archive = GridArchive((4, 3), [(0, 1), (-3, 3)], qd_offset=-1)
    archive.add([[1.0], [2.0], [3.0]], [0.5, 1.5, -0.5], [[0.1, -2.5], [0.9, 2.5], [0.9, -0.5]])
    data = ArchivePanel(archive).data()
    assert sorted(data["values"]) == [[0, 0, 0.5], [3, 1, -0.5], [3, 2, 1.5]]
    assert [(axis["low"], axis["high"], axis["bins"]) for axis in data["axes"]] == [(0, 1, 4), (-3, 3, 3)]
    assert (data["elites"], data["niches"], data["coverage"], data["best"]) == (3, 12, 0.25, 1.5)
    assert data["qd_score"] == pytest.approx(archive.qd_score) and data["kind"] == "grid" and data["folded"] == 0


def test_further_components_are_folded_to_their_best() -> None:
    archive = GridArchive((2, 2, 5), [(0, 1)] * 3)
    archive.add([[1.0], [2.0]], [0.5, 0.7], [[0.1, 0.1, 0.1], [0.1, 0.1, 0.9]])
    data = ArchivePanel(archive).data()
    assert data["values"] == [[0, 0, 0.7]] and data["folded"] == 1 and data["elites"] == 2


def test_a_fine_grid_is_shown_in_a_hundred_bins_of_each_axis() -> None:
    archive = GridArchive((1000, 10), [(0, 1), (0, 1)])
    archive.add([[1.0], [2.0]], [1.0, 2.0], [[0.0, 0.0], [0.9995, 0.0]])
    data = ArchivePanel(archive).data()
    assert data["axes"][0]["bins"] == 100 and data["values"] == [[0, 0, 1.0], [99, 0, 2.0]]


def test_an_archive_of_one_component_has_one_axis() -> None:
    archive = GridArchive((5,), [(0, 1)])
    archive.add([[1.0]], [2.0], [[0.5]])
    data = ArchivePanel(archive).data()
    assert len(data["axes"]) == 1 and data["values"] == [[2, 0, 2.0]]


def test_a_voronoi_cell_covers_all_bins_whose_middle_it_has() -> None:
    archive = CVTArchive(2, [(0, 1), (0, 1)], centroids=[[0.25, 0.5], [0.75, 0.5]])
    archive.add([[1.0]], [3.0], [[0.1, 0.1]])
    panel = ArchivePanel(archive)
    values = panel.data()["values"]
    assert len(values) == 64 * 64 / 2 and {value for _, _, value in values} == {3.0}
    assert max(first for first, _, _ in values) == 31
    archive.add([[2.0]], [4.0], [[0.9, 0.9]])
    assert {value for _, _, value in panel.data()["values"]} == {3.0, 4.0}


def test_an_empty_archive_has_no_values_and_computes_no_centroids() -> None:
    archive = CVTArchive(1000, [(0, 1), (0, 1)])
    data = ArchivePanel(archive).data()
    assert data["values"] == [] and data["best"] is None and "centroids" not in vars(archive)


def test_long_behaviours_of_a_voronoi_archive_are_seen_along_their_first_two_components() -> None:
    archive = CVTArchive(4, [(0, 1)] * 3, centroids=np.eye(4, 3))
    archive.add([[1.0]], [3.0], [[1.0, 0.0, 0.0]])
    assert ArchivePanel(archive).data()["values"] == [[63, 0, 3.0]]
