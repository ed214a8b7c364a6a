"""The archive of a quality-diversity run as a heat map: each niche in the colour of its elite's fitness.

Mouret, Clune: Illuminating search spaces by mapping elites, 2015 (https://arxiv.org/abs/1504.04909), figure 4, and for
Voronoi cells Vassiliades et al. 2016 (https://arxiv.org/abs/1610.05729), figure 3. Requires matplotlib; opens no
window.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ropewalk.population.archives.cvt_archive import CVTArchive
from ropewalk.population.archives.elite_archive import EliteArchive

_PIXELS = 400  # Voronoi cells along each side of the picture


def draw_heat_map(
    archive: EliteArchive,
    path: str | Path | None = None,
    *,
    labels: Sequence[str] = ("behaviour 0", "behaviour 1"),
    title: str | None = None,
    fitness_range: tuple[float, float] | None = None,
) -> Figure:
    """Draw an archive of two-dimensional behaviours; empty niches stay white.

    Args:
        archive: a grid or CVT archive.
        path: file to save the figure to, as .png, .pdf or .svg; None only returns it.
        labels: labels of the two axes.
        title: title of the figure; defaults to coverage and QD score.
        fitness_range: fitnesses at the ends of the colour scale; defaults to those of the worst and the best elite.

    Returns:
        The figure, which belongs to no window.

    Raises:
        ValueError: behaviours do not have two components.
    """
    if len(archive.lows) != 2:
        raise ValueError(f"a heat map has two axes, and the behaviours of this archive {len(archive.lows)} numbers")
    figure = Figure(figsize=(6, 5), layout="constrained")
    drawing: Any = figure  # matplotlib's annotations do not cover keyword arguments
    axes = drawing.subplots()
    (left, bottom), (right, top) = archive.lows, archive.highs
    least, greatest = fitness_range or (None, None)
    image = axes.imshow(
        heat(archive).T,
        origin="lower",
        extent=(left, right, bottom, top),
        aspect="auto",
        interpolation="nearest",
        vmin=least,
        vmax=greatest,
    )
    drawing.colorbar(image, ax=axes, label="fitness")
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.set_title(title or f"{archive.coverage:.0%} of {archive.num_niches} niches, QD score {archive.qd_score:.4g}")
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        drawing.savefig(path, dpi=150)
    return figure


def heat(archive: EliteArchive) -> NDArray[np.float64]:
    """Return fitnesses on a grid: the niches of a grid archive, or pixels of Voronoi cells.

    The result is float64 of shape (first component, second component), NaN where there is no elite.
    """
    fitness = archive.fitness_by_niche()
    if not isinstance(archive, CVTArchive):
        return fitness
    middles = (np.arange(_PIXELS) + 0.5) / _PIXELS
    places = np.stack(np.meshgrid(middles, middles, indexing="ij"), axis=-1).reshape(-1, 2)
    niches = archive.niches_of(archive.lows + places * (archive.highs - archive.lows))
    return fitness[niches].reshape(_PIXELS, _PIXELS)
