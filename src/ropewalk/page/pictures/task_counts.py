"""The picture of a pool's tasks by state.

Data: `{"queued": n, "running": n, "done": n, "failed": n, "retried": n}`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ropewalk.page.picture import Picture
from ropewalk.page.style import Option, Style

_ORDER = ("done", "running", "queued", "retried", "failed")


def task_counts(data: Mapping[str, int], style: Style) -> Option:
    """One bar, in which each state has its share."""
    colors = {"done": style.good, "running": style.colors[0], "queued": style.muted, "retried": style.warn}
    return {
        **style.base(),
        "legend": style.legend(),
        "grid": {"left": 16, "right": 24, "top": 32, "bottom": 24},
        "xAxis": style.axis(max="dataMax", axisLabel={"color": style.muted, "showMaxLabel": False}),
        "yAxis": {"type": "category", "data": ["tasks"], "show": False},
        "series": [
            {
                "name": f"{name} {data.get(name, 0):,}",
                "type": "bar",
                "stack": "tasks",
                "barWidth": 28,
                "data": [data.get(name, 0)],
                "itemStyle": {"color": colors.get(name, style.bad)},
            }
            for name in _ORDER
            if data.get(name, 0) or name == "done"
        ],
    }


PICTURE = Picture("tasks", "Tasks", task_counts, height=100, waiting="no task was given")
