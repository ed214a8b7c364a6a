"""A plan in Graphviz's DOT language: operators as vertices, a box around each stage, bold edges between stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.pipeline.profiles import Profile
from ropewalk.quantities import shown_duration, shown_size

if TYPE_CHECKING:  # `plans.py` imports this module
    from ropewalk.pipeline.plans import Plan

_COLOURS = ("#dbeafe", "#dcfce7", "#fef9c3", "#fce7f3", "#ede9fe", "#ffedd5", "#e0f2fe", "#f1f5f9")


def plan_dot(plan: Plan, profile: Profile) -> str:
    """Draw a plan over the operators of its profile, for `dot -Tsvg`.

    Args:
        plan: the plan to draw.
        profile: the profile that the plan was made from.
    """
    number = {id: index for index, id in enumerate(profile.order)}
    stage_of = {id: stage.id for stage in plan.stages for id in stage.operators}
    lines = [
        "digraph plan {",
        "  rankdir=TB; compound=true;",
        '  node [shape=box, style="rounded,filled", fontsize=10];',
    ]
    for stage in plan.stages:
        replicas = f", {stage.replicas} replicas" if stage.replicas > 1 else ""
        lines += [
            f"  subgraph cluster_{stage.id} {{",
            f'    label="stage {stage.id}{replicas}"; style=filled; color="{_COLOURS[stage.id % len(_COLOURS)]}";',
        ]
        for id in stage.operators:
            operator = profile.by_id[id]
            times = f"{shown_duration(operator.forward_s)} + {shown_duration(operator.backward_s)}"
            label = "\\n".join([_quoted(id), _quoted(operator.description[:40]), times])
            lines.append(f'    n{number[id]} [label="{label}", fillcolor=white];')
        lines.append("  }")
    for source, target in profile.edges:
        crosses = stage_of[source] != stage_of[target]
        size = shown_size(profile.by_id[source].output_bytes)
        style = f' [style=bold, color="#b91c1c", label="{size}", fontsize=9]' if crosses else ""
        lines.append(f"  n{number[source]} -> n{number[target]}{style};")
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
