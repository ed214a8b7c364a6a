"""The lineage of a POET run as a tree over iterations; requires matplotlib.

    flat       ●───────┬────────────────────────     ● born, ✕ archived to make room for others
    rough 0.5          ●──────┬────────✕             ↕ an agent moved: unchanged, or after a step there (by colour)
    rough 0.7                 ●─────────────         the colour of a line is the best score in that environment

As the phylogenetic trees of Wang et al.: POET, 2019 (https://arxiv.org/abs/1901.01753), section 4.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from ropewalk.population.open_ended.environment_space import Environment
from ropewalk.population.open_ended.lineage import Branch, Lineage
from ropewalk.population.tree_rows import tree_rows

_ROW_INCHES, _LEAST_INCHES, _MOST_INCHES = 0.28, 2.5, 30.0
_DIRECT, _FINE_TUNED = "tab:red", "tab:purple"
_MOST_LABELS = 80
"""With more rows than this, labels would be too small to read."""


def draw_lineage(
    lineage: Lineage,
    path: str | Path | None = None,
    *,
    describe: Callable[[Environment], str] = str,
    until: int | None = None,
    title: str = "",
) -> Figure:
    """Draw the descent of environments and the transfers of agents.

    Args:
        lineage: the lineage, `POET.lineage`.
        path: file to save the figure to, such as "lineage.png"; None only returns it.
        describe: returns the label of an environment; the `describe` of its space.
        until: the generation at which the lines of active environments end; defaults to that of the last event.
        title: title of the figure.

    Returns:
        The figure, which belongs to no window.
    """
    rows = tree_rows((branch.number, branch.parent) for branch in lineage.branches)
    end = until if until is not None else _last_event(lineage)
    height = min(max(_ROW_INCHES * len(rows) + 1, _LEAST_INCHES), _MOST_INCHES)
    figure: Any = Figure(figsize=(10, height), layout="constrained")  # Any: matplotlib is only partly typed
    axes: Any = figure.add_subplot()
    _draw_branches(figure, axes, lineage.branches, rows, end)
    for transfer in lineage.transfers:
        axes.annotate(
            "",
            xy=(transfer.generation, rows[transfer.target]),
            xytext=(transfer.generation, rows[transfer.source]),
            arrowprops={"arrowstyle": "-|>", "color": _FINE_TUNED if transfer.fine_tuned else _DIRECT, "alpha": 0.35},
        )
    labels = {rows[branch.number]: describe(branch.environment) for branch in lineage.branches}
    if len(rows) <= _MOST_LABELS:
        axes.set_yticks(list(labels), list(labels.values()), fontsize=7)
    else:
        axes.set_yticks([])
    axes.invert_yaxis()
    axes.set_xlabel("iteration")
    axes.set_xlim(-0.02 * max(end, 1), 1.02 * max(end, 1))
    axes.plot([], [], color=_DIRECT, label="agent moved as it was")
    axes.plot([], [], color=_FINE_TUNED, label="agent moved after a step")
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.6 / height), ncols=2, fontsize=7, frameon=False)
    axes.set_title(title)
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    return figure


def _draw_branches(figure: Any, axes: Any, branches: list[Branch], rows: dict[int, int], end: int) -> None:
    lives = [((branch.born, rows[branch.number]), (_end_of(branch, end), rows[branch.number])) for branch in branches]
    scores = [float("nan") if branch.score is None else branch.score for branch in branches]
    known = [score for score in scores if score == score]
    lines = LineCollection(lives, linewidths=3, cmap="viridis", array=scores)
    lines.set_norm(Normalize(min(known, default=0.0), max(known, default=1.0)))
    axes.add_collection(lines)
    figure.colorbar(lines, ax=axes, label="best score", fraction=0.03, pad=0.01)
    for branch in branches:
        row = rows[branch.number]
        if branch.parent is not None:
            axes.plot([branch.born] * 2, [rows[branch.parent], row], color="0.6", linewidth=0.8, zorder=0)
        axes.plot(branch.born, row, "o", color="0.2", markersize=4)
        if branch.retired is not None:
            axes.plot(branch.retired, row, "x", color="0.2", markersize=5)


def _end_of(branch: Branch, end: int) -> int:
    return end if branch.retired is None else branch.retired


def _last_event(lineage: Lineage) -> int:
    times = [branch.born for branch in lineage.branches] + [transfer.generation for transfer in lineage.transfers]
    return max(times + [branch.retired for branch in lineage.branches if branch.retired is not None])
