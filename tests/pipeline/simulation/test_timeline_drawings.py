"""A timeline as text, as a picture and as a trace."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ropewalk.pipeline.actions import ActionKind
from ropewalk.pipeline.plans import Edge
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.simulation.simulator import simulate
from ropewalk.pipeline.simulation.spans import COMPUTING
from ropewalk.pipeline.simulation.timeline import Timeline
from ropewalk.pipeline.topology import Level, Topology
from tests.pipeline.simulation.equal_stages import Case, Times

SVG = "{http://www.w3.org/2000/svg}"
NAMES = ("gpipe", "pipedream", "zb_h1", "zb_v")


def drawn(name: str, *, overlap: bool = True) -> Timeline:
    case = Case(make_schedule(name), 2, 4, Times(1, 1.5, 0.5), replicas=2 if name == "pipedream" else 1)
    topology = Topology((Level(case.p * case.replicas, 32.0, 0.125),))
    return simulate(case.plan(), case.profile(), topology, schedule=case.schedule, overlap=overlap)


def test_a_terminal_shows_who_does_what_when() -> None:
    case = Case(make_schedule("one_f_one_b"), 2, 2, Times(2, 2, 2))
    timeline = simulate(case.plan(), case.profile(), case.topology)
    assert str(timeline) == timeline.text(width=120)
    assert timeline.text(width=41) == "\n".join(
        [
            "step 18 s, bubble 6 s (33 %), 33 % idle, at most 1.99 KiB on a device; "
            "device 0 (stage 0) computes 67 % of the time",
            "",
            "0.0  F0━━F1━━        B0━━━━━━    B1━━━━━━",
            "1.0      F0━━B0━━━━━━F1━━B1━━━━━━",
            "     0 s                             18 s",
        ]
    )


def test_of_many_workers_some_are_shown_and_the_others_counted() -> None:
    timeline = drawn("gpipe")
    assert "and 1 more workers" in timeline.text(max_workers=1)
    assert "and 1 more workers" in timeline.svg(max_workers=1)
    assert repr(timeline).startswith("<timeline of ")


@pytest.mark.parametrize("name", NAMES)
def test_the_picture_has_a_box_for_each_action_and_stands_alone(name: str) -> None:
    timeline = drawn(name)
    root = ElementTree.fromstring(timeline.svg())
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    for worker in timeline.workers:
        for action in timeline.actions[worker]:
            if action.kind in COMPUTING:
                assert any(title.startswith(f"{action}: ") for title in titles), action
    assert sum(" to " in title and "micro-batch" in title for title in titles) == 2 * sum(
        transfer.level >= 0 for transfer in timeline.transfers
    )
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {"svg", "rect", "text", "g", "title", "path"}
    assert "href" not in timeline.svg()
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    for box in root.iter(f"{SVG}rect"):
        if box.attrib["width"] != "100%":
            assert 0 <= float(box.attrib["x"]) <= float(box.attrib["x"]) + float(box.attrib["width"]) <= width
            assert 0 <= float(box.attrib["y"]) <= height


def test_names_of_a_model_cannot_break_the_picture() -> None:
    case = Case(make_schedule("gpipe"), 2, 1, Times(1, 1, 1))
    plan = case.plan()
    plan = dataclasses.replace(plan, edges=(Edge('<a & "b">', 0, (1,), 8, 8),))
    timeline = simulate(plan, case.profile(), Topology((Level(2, 8.0),)), schedule=case.schedule)
    titles = [title.text or "" for title in ElementTree.fromstring(timeline.svg()).iter(f"{SVG}title")]
    assert any('<a & "b">' in title for title in titles)


def test_a_worker_that_waits_for_its_transfers_is_seen_to() -> None:
    waiting = drawn("gpipe", overlap=False)
    assert "wait for a transfer" in waiting.svg()
    assert "wait for a transfer" not in drawn("gpipe").svg()


@pytest.mark.parametrize("name", NAMES)
def test_the_trace_has_all_slices_in_order_and_arrows_with_both_ends(name: str, tmp_path: Path) -> None:
    timeline = drawn(name)
    timeline.save_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_bytes())
    by_phase: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        by_phase[event["ph"]].append(event)
    rows: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in by_phase["X"]:
        rows[event["pid"], event["tid"]].append(event)
    for row in rows.values():
        row.sort(key=lambda event: event["ts"])
        assert all(one["ts"] + one["dur"] <= two["ts"] + 1e-6 for one, two in pairwise(row))
    computed = [event["name"] for (_, thread), row in rows.items() for event in row if thread == 0]
    spans = [span for worker in timeline.workers for span in timeline.spans(worker)]
    assert sorted(computed) == sorted(
        str(span.action) for span in spans if span.action.kind not in (ActionKind.SEND, ActionKind.RECEIVE)
    )
    named = {(event["pid"], event["tid"]) for event in by_phase["M"] if event["name"] == "thread_name"}
    assert set(rows) <= named
    passed = [number for number, transfer in enumerate(timeline.transfers) if transfer.level >= 0]
    for phase in "stf":
        assert sorted(event["id"] for event in by_phase[phase]) == passed, phase
        for event in by_phase[phase]:  # an arrow needs a slice to end in
            row = rows[event["pid"], event["tid"]]
            assert any(one["ts"] - 1e-6 <= event["ts"] <= one["ts"] + one["dur"] + 1e-6 for one in row)
    starts = {event["id"]: event["ts"] for event in by_phase["s"]}
    assert all(starts[event["id"]] <= event["ts"] for event in by_phase["f"])
    assert {event["pid"] for event in by_phase["C"]} == {timeline.plan.device_of(worker) for worker in timeline.workers}
