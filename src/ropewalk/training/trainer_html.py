"""A trainer as a short table in a notebook."""

from __future__ import annotations

from ropewalk.control.facts import shown_facts
from ropewalk.control.view import View
from ropewalk.html_table import StateCell, html_box, html_failure, html_headline, html_table
from ropewalk.quantities import shown_duration, shown_size


def trainer_html(view: View) -> str:
    """Return the view of a trainer as HTML, in which all of its texts are escaped."""
    facts = shown_facts(view.facts)
    if view.progress is not None:
        left = "" if view.left_s is None else f", {shown_duration(float(round(view.left_s)))} left"
        facts.insert(0, ("progress", f"{100 * view.progress:.0f} %{left}"))
    rows = [
        (one.name, one.group, StateCell(one.state), one.doing, shown_size(one.memory_bytes)) for one in view.processes
    ]
    processes = html_table(("process", "stage", "state", "doing", "memory"), rows, right={4}) if rows else ""
    headline = html_headline(view.name, view.state)
    return html_box(headline, html_table(("", ""), facts), processes, html_failure(view.last_failure))
