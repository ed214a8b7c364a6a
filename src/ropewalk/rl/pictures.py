"""Drawings of experiments, for which matplotlib is needed: `pip install matplotlib`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ropewalk.rl.result import ExperimentResult


def draw_learning_curves(
    results: Mapping[str, ExperimentResult],
    path: Path | str,
    *,
    title: str = "",
    spread: bool = True,
    threshold: float | None = None,
    threshold_name: str = "solved",
) -> None:
    """Draw scores over environment steps: of training as lines, of evaluations as points with their best and worst.

    Args:
        results: the results, by their names in the legend.
        path: path of the picture, such as "curve.png"; its folder is made if it is missing.
        title: above the picture.
        spread: whether the worst and the best episode of each evaluation are drawn.
        threshold: a score that is drawn as a dotted line; None: no line.
        threshold_name: what the legend calls it.
    """
    figure: Any = Figure(figsize=(8, 4.5), layout="constrained")  # Any: matplotlib is only partly typed
    axes = figure.subplots()
    for number, (name, result) in enumerate(results.items()):
        colour = f"C{number}"
        rows = [row for row in result.timeline if row["score"] is not None]
        label = f"{name}: last 100 episodes of training"
        axes.plot([row["steps"] for row in rows], [row["score"] for row in rows], color=colour, label=label)
        _draw_evaluations(axes, name, result, colour, spread)
    if threshold is not None:
        axes.axhline(threshold, color="grey", linewidth=1, linestyle=":", label=f"{threshold_name}: {threshold:g}")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set(xlabel="environment steps", ylabel="score of an episode", title=title)
    names, labels = axes.get_legend_handles_labels()
    if len(labels) > 3:  # inside, it would cover the curves
        figure.legend(names, labels, loc="outside lower center", ncols=2, fontsize="small")
    else:
        axes.legend(loc="best", fontsize="small")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _draw_evaluations(axes: Any, name: str, result: ExperimentResult, colour: str, spread: bool) -> None:
    evaluations = result.evaluations
    if not evaluations:
        return
    means = [scores.mean for scores in evaluations]
    bars = None
    if spread:
        below = [scores.mean - min(scores.scores) for scores in evaluations]
        above = [max(scores.scores) - scores.mean for scores in evaluations]
        bars = (below, above)
    label = f"{name}: evaluation without exploration" + (", worst to best episode" if spread else "")
    steps = [scores.steps for scores in evaluations]
    axes.errorbar(steps, means, bars, fmt="o", markersize=4, linewidth=0.8, color=colour, label=label)


__all__ = ["draw_learning_curves"]
