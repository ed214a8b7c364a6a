"""The result of population based training over steps: the scores of all members and the best one's hyperparameters.

    score  ╱╌╌╌            thin: every interval of every member, including dead branches
          ╱━━━━━━          thick: the history of the best state
    rate  ━━┓╌╌┗━━━        one row for each hyperparameter that changes

As figure 4 of Jaderberg et al.: Population Based Training of Neural Networks, 2017 (https://arxiv.org/abs/1711.09846).
Requires matplotlib; opens no window.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from ropewalk.population.algorithms.pbt_history import History, PBTSchedule, TrainedInterval
from ropewalk.quantities import wants_log_axis

_ALL: dict[str, Any] = {"color": "0.6", "linewidth": 0.8, "alpha": 0.6}
_BEST: dict[str, Any] = {"color": "tab:red", "linewidth": 2.0}


def draw_schedule(
    history: History, schedule: PBTSchedule, path: str | Path | None = None, *, title: str | None = None
) -> Figure:
    """Draw the scores and hyperparameters of a run.

    Args:
        history: the history of all members, `PBT.history`.
        schedule: the schedule to draw with thick lines, `PBT.schedule()`.
        path: file to save the figure to, as .png, .pdf or .svg; None only returns it.
        title: title of the figure; defaults to the last score of the schedule.

    Returns:
        The figure, which belongs to no window.

    Raises:
        ValueError: nothing was trained yet.
    """
    if not len(history) or not len(schedule):
        raise ValueError(f"there is nothing to draw: {len(history)} intervals, {len(schedule)} of them in the schedule")
    every = [history.stretch(place) for place in range(len(history))]
    names = [name for name in every[0].hyperparameters if len({each.hyperparameters[name] for each in every}) > 1]
    figure: Any = Figure(figsize=(8, 2.2 * (1 + len(names))), layout="constrained")
    rows = figure.subplots(1 + len(names), 1, sharex=True, squeeze=False)[:, 0]
    best = list(schedule.stretches)

    _draw_lines(rows[0], [_rise(history, place) for place in range(len(history))], _ALL, "all members")
    _draw_lines(rows[0], [[(each.end, each.score) for each in best]], _BEST, "best")
    rows[0].set_ylim(*_limits([each.score for each in every], [each.score for each in best]))
    rows[0].set_ylabel("score")
    rows[0].legend(loc="lower right", fontsize="small")
    rows[0].set_title(title or f"score {best[-1].score:.4g} after {best[-1].end} steps, in {len(best)} intervals")
    for row, name in zip(rows[1:], names, strict=True):
        _draw_values(row, name, every, best)
    rows[-1].set_xlabel("steps")
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    return figure


def _limits(scores: list[float], best: list[float]) -> tuple[float, float]:
    """Return the range of scores that is drawn, with all of the best member's.

    One member that diverges would make all others one line, so of the rest the worst quarter is left out.
    """
    known = sorted(score for score in scores if math.isfinite(score)) or [0.0]
    low = min([known[len(known) // 4], *filter(math.isfinite, best)])
    high = known[-1]
    margin = 0.05 * (high - low) or 0.5
    return low - margin, high + margin


def _rise(history: History, place: int) -> list[tuple[float, float]]:
    """Return the line of an interval: from the score of the state at its start to the score at its end."""
    stretch, parent = history.stretch(place), history.parent(place)
    begin = (stretch.steps, history.stretch(parent).score) if parent >= 0 else (stretch.end, stretch.score)
    return [begin, (stretch.end, stretch.score)]


def _draw_values(axes: Any, name: str, every: list[TrainedInterval], best: list[TrainedInterval]) -> None:
    values = [each.hyperparameters[name] for each in every]
    height = {value: value for value in values}
    if any(isinstance(value, bool | str) or value is None for value in values):  # not numbers: one line per value
        height = {value: at for at, value in enumerate(sorted(set(values), key=str))}
        axes.set_yticks(range(len(height)), [str(value) for value in sorted(set(values), key=str)])
    elif wants_log_axis(values):
        axes.set_yscale("log")
    _draw_lines(axes, [_level(each, height[each.hyperparameters[name]]) for each in every], _ALL)
    joined = [point for each in best for point in _level(each, height[each.hyperparameters[name]])]
    _draw_lines(axes, [joined], _BEST)
    axes.set_ylabel(name)


def _level(stretch: TrainedInterval, height: float) -> list[tuple[float, float]]:
    return [(stretch.steps, height), (stretch.end, height)]


def _draw_lines(axes: Any, lines: list[list[tuple[float, float]]], style: dict[str, Any], label: str = "") -> None:
    axes.add_collection(LineCollection(lines, label=label, **style))
    axes.autoscale_view()
