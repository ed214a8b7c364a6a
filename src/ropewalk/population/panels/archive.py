"""The panel "archive": the elites of a quality-diversity archive on a grid of two components of behaviour."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.control.columns import finite
from ropewalk.population.archives.cvt_archive import CVTArchive
from ropewalk.population.archives.elite_archive import EliteArchive

_MOST_BINS = 100
"""Of an axis; neighbouring bins of finer grids are shown as one."""
_RASTER = 64
"""Bins of an axis of a Voronoi archive, which has none of its own."""


class ArchivePanel:
    """Makes the data of one archive.

    Args:
        archive: the archive; it must not change during a call.
    """

    def __init__(self, archive: EliteArchive) -> None:
        self._archive = archive
        self._raster: NDArray[np.int64] | None = None
        """The niche of each bin of a Voronoi archive: int64 of shape (bins * bins,)."""

    def data(self, cursor: int = 0) -> dict[str, Any]:
        """Return the archive as it is now.

        The form is `{"kind": "grid" or "cvt", "axes": [{"name": text, "low": number, "high": number, "bins": number}],
        "values": [[bin of the first axis, bin of the second, fitness]], "elites": number, "niches": number,
        "coverage": share, "qd_score": number, "best": fitness, "folded": number}`. `values` has the bins with an elite
        alone. Behaviours of more than two components are folded: a bin shows the best of its elites, whatever the other
        `folded` components are. An archive of one component has one axis, and 0 as the second bin.

        Args:
            cursor: not used: an answer has all elites.
        """
        del cursor
        archive = self._archive
        bins = self._bins()
        elites, niches = self._places(bins)
        values = np.full(bins[0] * bins[1], -np.inf)
        np.maximum.at(values, niches, archive.fitnesses[elites])
        shown = np.flatnonzero(np.isfinite(values))
        first, second = np.divmod(shown, bins[1])
        best = archive.best
        return {
            "kind": "cvt" if isinstance(archive, CVTArchive) else "grid",
            "axes": [
                {"name": f"behaviour {at}", "low": float(low), "high": float(high), "bins": num}
                for at, (low, high, num) in enumerate(zip(archive.lows[:2], archive.highs[:2], bins, strict=False))
            ],
            "values": [
                list(each) for each in zip(first.tolist(), second.tolist(), values[shown].tolist(), strict=True)
            ],
            "elites": len(archive),
            "niches": archive.num_niches,
            "coverage": archive.coverage,
            "qd_score": finite(archive.qd_score),
            "best": None if best is None else finite(float(archive.fitnesses[best])),
            "folded": max(0, len(archive.lows) - 2),
        }

    def _bins(self) -> tuple[int, int]:
        """Return the number of bins of each axis; 1 for an axis that the archive does not have."""
        if isinstance(self._archive, CVTArchive):
            own = (_RASTER,) * len(self._archive.lows)
        else:
            own = self._archive.shape
        first, second = (*own, 1)[:2]
        return min(first, _MOST_BINS), min(second, _MOST_BINS)

    def _places(self, bins: tuple[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return rows of elites, and the bin of each, as the index first * bins[1] + second."""
        archive = self._archive
        if isinstance(archive, CVTArchive) and len(archive) and len(archive.lows) == 2:
            return self._cells(archive, bins)
        rows = np.arange(len(archive))
        if isinstance(archive, CVTArchive):
            share = (archive.behaviours[:, :2] - archive.lows[:2]) / (archive.highs[:2] - archive.lows[:2])
            found = np.clip(share * bins[: share.shape[1]], 0, np.array(bins[: share.shape[1]]) - 1).astype(np.int64)
        else:
            parts = np.stack(np.unravel_index(archive.niches, archive.shape), axis=1)[:, :2]
            found = parts * np.array(bins[: parts.shape[1]]) // np.array(archive.shape[: parts.shape[1]])
        second = found[:, 1] if found.shape[1] > 1 else np.zeros(len(rows), np.int64)
        return rows, found[:, 0] * bins[1] + second

    def _cells(self, archive: CVTArchive, bins: tuple[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return, for each bin whose middle is in the Voronoi cell of an elite, that elite and the bin."""
        if self._raster is None:
            middles = [(np.arange(num) + 0.5) / num for num in bins]
            shares = np.stack(np.meshgrid(*middles, indexing="ij"), axis=-1).reshape(-1, 2)
            self._raster = archive.niches_of(archive.lows + shares * (archive.highs - archive.lows))
        row_of = np.full(archive.num_niches, -1)
        row_of[archive.niches] = np.arange(len(archive))
        rows = row_of[self._raster]
        taken = np.flatnonzero(rows >= 0)
        return rows[taken], taken


__all__ = ["ArchivePanel"]
