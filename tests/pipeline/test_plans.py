"""Plans that strangers wrote: what cannot be is refused when the plan is read, not somewhere in a run."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from ropewalk.errors import PlanInvalid
from ropewalk.pipeline.plans import Edge, Plan, Stage, Tie

STAGES = tuple(Stage(number, (name,), (number,)) for number, name in enumerate("abc"))
PLAN = Plan(STAGES, (Edge("a", 0, (1, 2), 8, 8), Edge("b", 1, (2,), 8, 0)), (Tie("w", (0, 2)),), "gpipe", 4)


def test_a_plan_is_read_as_it_was_written() -> None:
    assert Plan.from_json(PLAN.to_json()) == PLAN


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"edges": (Edge("a", -1, (1,), 8, 8),)}, "edge 'a' leads from stage -1 to"),
        ({"edges": (Edge("a", 1, (1,), 8, 8),)}, "edge 'a' leads from stage 1 to"),
        ({"edges": (Edge("a", 0, (3,), 8, 8),)}, "edge 'a' leads from stage 0 to"),
        ({"edges": (Edge("a", 0, (1,), -8, 8),)}, "edge 'a' has -8 bytes"),
        ({"edges": (Edge("a", 0, (1,), 8, -1),)}, "-1 for its gradient"),
        ({"edges": (Edge("a", 0, (1,), 8, 8), Edge("a", 0, (2,), 8, 8))}, "two edges are for the value of 'a'"),
        ({"tied": (Tie("w", (0, 7)),)}, "'w' is tied between stages"),
        ({"tied": (Tie("w", (-1, 0)),)}, "'w' is tied between stages"),
        ({"tied": (Tie("w", (1,)),)}, "'w' is tied between stages"),
        ({"stages": (*STAGES[:2], Stage(2, ("c", "a"), (2,)))}, "'a' is in stage 0 and again in stage 2"),
        ({"stages": (*STAGES[:2], Stage(2, ("c",), (-1,)))}, "stage 2 needs different devices"),
        ({"micro_batches": 0}, "at least 1 micro-batch"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(PlanInvalid, match=says):
        dataclasses.replace(PLAN, **changes)  # type: ignore[arg-type]
    facts = {field.name: getattr(PLAN, field.name) for field in dataclasses.fields(PLAN)} | changes
    with pytest.raises(PlanInvalid, match=says):
        Plan.from_json(msgspec.json.encode(facts))
