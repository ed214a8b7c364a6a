"""The picture of a search: its history, configurations, importance of hyperparameters, and steps.

    ┌ best so far, every trial ┐ ┌ importance of each hyperparameter ┐
    ├ steps that trials were given ┤ ├ configurations as parallel lines ┤

Requires matplotlib; opens no window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ropewalk.quantities import wants_log_axis
from ropewalk.search.importance import importances
from ropewalk.search.trial_result import TrialResult
from ropewalk.search.value_scales import is_logarithmic, shown_range, with_margin

if TYPE_CHECKING:  # `results.py` imports this module, in the method that draws
    from ropewalk.search.results import SearchResults

_COLOURS = "viridis"
_FEWEST_BARS = 4
"""Room for this many bars at least, so that a single one is not a square."""
_MOST_AXES = 12
"""More hyperparameters than these are left out, from the least important on."""


def draw_search(results: SearchResults, path: str | Path | None = None) -> Figure:
    """Draw a search.

    Args:
        results: its trials.
        path: file to save the figure to, as .png, .pdf or .svg; None only returns it.

    Returns:
        The figure, which belongs to no window.

    Raises:
        ValueError: no trial has reported a value yet.
    """
    trials = [trial for trial in results if trial.best is not None and math.isfinite(trial.best)]
    if not trials:
        raise ValueError(f"there is nothing to draw: none of {len(results)} trials has reported {results.metrics[0]!r}")
    figure: Any = Figure(figsize=(12, 8), layout="constrained")  # Any: matplotlib is only partly typed
    panels = figure.subplots(2, 2)
    weights = importances(results)
    _draw_history(panels[0, 0], results, trials)
    _draw_importance(panels[0, 1], weights)
    _draw_steps(panels[1, 0], results, trials)
    names = sorted(_varied(trials), key=lambda name: -weights.get(name, 0.0))[:_MOST_AXES]
    _draw_configurations(figure, panels[1, 1], results, trials, names)
    best = results.best
    figure.suptitle(f"{results.name}: best {results.metrics[0]} {best.best:.5g}, trial {best.number} of {len(results)}")
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    return figure


def _draw_history(axes: Any, results: SearchResults, trials: Sequence[TrialResult]) -> None:
    sign = 1 if results.modes[0] == "max" else -1
    numbers, values = [trial.number for trial in trials], [_best(trial) for trial in trials]
    so_far = sign * np.maximum.accumulate([sign * value for value in values])
    axes.plot(numbers, values, "o", markersize=4, alpha=0.6, label="best of each trial")
    axes.step(numbers, so_far, where="post", color="tab:red", linewidth=2, label="best so far")
    _leave_out_far(axes, results, list(zip(numbers, values, strict=True)))
    axes.set(xlabel="trial", ylabel=results.metrics[0], title="history")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize="small")


def _draw_importance(axes: Any, weights: dict[str, float]) -> None:
    axes.set_title("importance of hyperparameters")
    if not weights:
        _say(axes, "too few trials with different values")
        return
    shown = sorted(weights.items(), key=lambda pair: pair[1])[-_MOST_AXES:]
    axes.barh([name for name, _ in shown], [weight for _, weight in shown], height=0.6)
    axes.set_ylim(len(shown) - max(len(shown), _FEWEST_BARS) - 0.5, len(shown) - 0.5)
    axes.set_xlabel("share of what explains the best tenth (PED-ANOVA)")


def _draw_steps(axes: Any, results: SearchResults, trials: Sequence[TrialResult]) -> None:
    """Draw the curve of every trial: where many end, there is a rung."""
    sign = 1 if results.modes[0] == "max" else -1
    curves = [
        [(step, sign * score) for step, score in sorted(trial.scores.items()) if math.isfinite(score)]
        for trial in trials
    ]
    lines = LineCollection(curves, array=_colours(trials), cmap=_COLOURS, linewidth=1, alpha=0.8)
    lines.set_norm(Normalize(*shown_range(map(_best, trials), results.modes[0])))
    axes.add_collection(lines)
    axes.plot([curve[-1][0] for curve in curves], [curve[-1][1] for curve in curves], "k.", markersize=3)
    steps = [step for curve in curves for step, _ in curve]
    if wants_log_axis(steps):
        axes.set_xscale("log")
    axes.autoscale_view()
    _leave_out_far(axes, results, [point for curve in curves for point in curve])
    axes.set(xlabel="step", ylabel=results.metrics[0], title="steps that trials were given")


def _leave_out_far(axes: Any, results: SearchResults, points: Sequence[tuple[float, float]]) -> None:
    """Let the axis end where values become far worse than most, and mark there where points are beyond it."""
    low, high = shown_range([value for _, value in points], results.modes[0])
    beyond = [step for step, value in points if not low <= value <= high]
    if not beyond:
        return
    bottom, top = with_margin(low, high)
    axes.set_ylim(bottom, top)
    edge, marker = (top, "^") if results.modes[0] == "min" else (bottom, "v")
    axes.plot(beyond, [edge] * len(beyond), marker, color="tab:orange", clip_on=False, label="beyond the axis")
    axes.legend(fontsize="small")


def _draw_configurations(
    figure: Any, axes: Any, results: SearchResults, trials: Sequence[TrialResult], names: Sequence[str]
) -> None:
    axes.set_title("configurations")
    if not names:
        _say(axes, "all trials have the same configuration")
        return
    heights = np.column_stack([_heights(axes, at, name, trials) for at, name in enumerate(names)])
    values = [_best(trial) for trial in trials]
    low, high = shown_range(values, results.modes[0])
    own = _scaled([min(max(value, low), high) for value in values])
    lines = [
        [(at, height) for at, height in enumerate([*row, own[index]]) if not math.isnan(height)]
        for index, row in enumerate(heights)
    ]
    colours = LineCollection(lines, array=_colours(trials), cmap=_COLOURS, linewidth=1, alpha=0.7)
    axes.add_collection(colours)
    for at in range(len(names) + 1):
        axes.axvline(at, color="0.7", linewidth=0.8, zorder=0)
    axes.set(xlim=(-0.1, len(names) + 0.1), ylim=(-0.12, 1.12), yticks=[])
    axes.set_xticks(range(len(names) + 1), [*names, results.metrics[0]], rotation=20, ha="right")
    colours.set_norm(Normalize(low, high))
    extend = "max" if max(values) > high else "min" if min(values) < low else "neither"
    figure.colorbar(colours, ax=axes, label=results.metrics[0], extend=extend)


def _heights(axes: Any, at: int, name: str, trials: Sequence[TrialResult]) -> np.ndarray[Any, Any]:
    """Return where a hyperparameter's values are on its axis from 0 to 1, and label the ends of the axis.

    NaN is for a number that is absent, as its condition does not hold.
    """
    values = [trial.hyperparameters.get(name) for trial in trials]
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if numbers and len(numbers) == len(values) - values.count(None):
        least, most = min(numbers), max(numbers)
        _label(axes, at, f"{least:.3g}", f"{most:.3g}")
        is_log = is_logarithmic(numbers)
        return _scaled([math.nan if v is None else math.log(v) if is_log else float(v) for v in values])
    kinds = sorted({str(value) for value in values})
    _label(axes, at, kinds[0], kinds[-1])
    return _scaled([float(kinds.index(str(value))) for value in values])


def _say(axes: Any, words: str) -> None:
    """Show a sentence in place of a drawing."""
    axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes)
    axes.set_axis_off()


def _label(axes: Any, at: int, low: str, high: str) -> None:
    axes.text(at, -0.04, low[:12], ha="center", va="top", fontsize="x-small")
    axes.text(at, 1.04, high[:12], ha="center", va="bottom", fontsize="x-small")


def _scaled(values: Sequence[float]) -> np.ndarray[Any, Any]:
    array = np.asarray(values, dtype=float)
    least, span = np.nanmin(array), float(np.nanmax(array) - np.nanmin(array))
    return (array - least) / span if span else np.where(np.isnan(array), np.nan, 0.5)


def _colours(trials: Sequence[TrialResult]) -> np.ndarray[Any, Any]:
    return np.array([_best(trial) for trial in trials])


def _varied(trials: Sequence[TrialResult]) -> list[str]:
    names = dict.fromkeys(name for trial in trials for name in trial.hyperparameters)
    return [name for name in names if len({str(trial.hyperparameters.get(name)) for trial in trials}) > 1]


def _best(trial: TrialResult) -> float:
    assert trial.best is not None
    return trial.best


__all__ = ["draw_search"]
