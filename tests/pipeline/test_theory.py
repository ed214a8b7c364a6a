"""The tables of docs/theory.md, "Memory model" and "Weight versions", are evaluated: they say what schedules do."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from math import ceil, floor
from pathlib import Path

import pytest

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.plans import Edge, Plan, Stage
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.schedules.schedule import Schedule

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "theory.md").read_text()


def rows(heading: str) -> dict[str, list[str]]:
    """The table of a section: by schedule, the other cells."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found: dict[str, list[str]] = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            first, *others = line.strip("| ").split(" | ")
            if "vertical sync" not in first:
                found |= dict.fromkeys(re.findall(r"`(\w+)`", first), others)
    return found


def formula(cell: str) -> str:
    """The first formula of a cell; a number may stand without marks."""
    (found,) = re.findall(r"`([^`]+)`", cell)[:1] or [cell]
    return found


BOUNDS, VERSIONS = rows("Memory model"), rows("Weight versions")


def plans(name: str) -> Iterator[tuple[Plan, Schedule]]:
    """All small plans of one stage for each worker that a schedule takes."""
    schedule = make_schedule(name)
    for p, micro_batches in itertools.product(range(1, 4), range(1, 11)):
        for replicas in itertools.product((1, 2), repeat=p):
            devices = iter(range(sum(replicas)))
            stages = [Stage(s, (f"{s}",), tuple(next(devices) for _ in range(r))) for s, r in enumerate(replicas)]
            edges = [Edge(f"{s}", s, (s + 1,), 1, 1) for s in range(p - 1)]
            plan = Plan(tuple(stages), tuple(edges), (), name, micro_batches)
            try:
                schedule.check(plan)
            except ScheduleInvalid:
                continue
            yield plan, schedule


def symbols(plan: Plan, stage: int) -> dict[str, object]:
    """What the page calls them."""
    replicas = plan.stages[stage].replicas
    return {
        "M": plan.micro_batches,
        "p": len(plan.stages),
        "r_s": replicas,
        "W_s": ceil(plan.workers_after(stage) / replicas),
        "ceil": ceil,
        "floor": floor,
    }


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_what_is_kept_is_what_the_page_says(name: str) -> None:
    in_flight, held, extra = BOUNDS[name]
    num = 0
    for plan, schedule in plans(name):
        for stage, known in ((stage.id, symbols(plan, stage.id)) for stage in plan.stages):
            replicas, after = plan.stages[stage].replicas, plan.workers_after(stage)
            expected = eval(formula(in_flight), dict(known))
            assert schedule.in_flight_at(plan, stage) == expected, plan
            assert schedule.held_at(plan, stage) == (
                expected if held == "the same" else eval(formula(held), dict(known))
            ), plan
            assert schedule.extra_versions(after, replicas, len(plan.stages)) == eval(formula(extra), dict(known)), plan
            num += 1
    assert num > 50


@pytest.mark.parametrize("name", ["pipedream", "pipedream_2bw"])
def test_versions_are_those_of_the_page(name: str) -> None:
    version = formula(VERSIONS[name][0])
    for plan, schedule in plans(name):
        for stage, b in itertools.product(range(len(plan.stages)), range(3 * plan.micro_batches)):
            known = symbols(plan, stage)
            known |= {"j": b // plan.stages[stage].replicas, "t": b // plan.micro_batches}
            assert schedule.version(plan, stage, b) == eval(version, known), plan


def test_the_page_has_every_schedule_of_one_stage_a_worker() -> None:
    assert set(BOUNDS) == {"gpipe", "one_f_one_b", "zb_h1", "zb_h2", "pipedream", "pipedream_2bw"}
    assert set(VERSIONS) >= set(BOUNDS)
