"""A trainer as a short table in a notebook."""

from __future__ import annotations

import html

from ropewalk.control.view import View
from ropewalk.quantities import shown_duration, shown_size


def trainer_html(view: View) -> str:
    """Return the view of a trainer as HTML, in which all of its texts are escaped."""
    facts = "".join(
        f"<tr><th>{_safe(name)}</th><td>{_safe(_shown(name, value))}</td></tr>" for name, value in view.facts.items()
    )
    headings = "".join(f"<th>{name}</th>" for name in ("process", "stage", "state", "doing", "memory"))
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td>{_safe(cell)}</td>"
            for cell in (one.name, one.group, one.state, one.doing, shown_size(one.memory_bytes))
        )
        + "</tr>"
        for one in view.processes
    )
    processes = f"<table><tr>{headings}</tr>{rows}</table>" if rows else ""
    failure = f"<p>{_safe(view.last_failure)}</p>" if view.last_failure else ""
    return f"<b>{_safe(view.name)}</b> {_safe(view.state)}<table>{facts}</table>{processes}{failure}"


def _shown(name: str, value: float | int | str) -> str:
    if isinstance(value, str | int):
        return str(value)
    if name.endswith("_s") and not name.endswith("_per_s"):
        return shown_duration(value)
    return f"{100 * value:.0f} %" if name in ("goodput", "bubble") else f"{value:.4g}"


def _safe(text: str) -> str:
    return html.escape(text)
