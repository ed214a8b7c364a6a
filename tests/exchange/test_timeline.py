"""Traces of exchanges: what chrome://tracing reads, whole or cut short."""

import json
import time

from ropewalk.exchange.buckets import BucketEntry, Layout
from ropewalk.exchange.exchange import StepRecord
from ropewalk.exchange.groups.thread_group import ThreadGroup
from ropewalk.exchange.timeline import ExchangeTimeline, merge_timelines, read_timeline

LAYOUTS = (Layout((BucketEntry("c", (2,)), BucketEntry("b", (2,)))), Layout((BucketEntry("a", (2,)),)))


def _step(timeline: ExchangeTimeline, step: int) -> None:
    timeline.begin(StepRecord(step))
    timeline.ready("c")
    began = time.perf_counter()
    timeline.phase("transfer", 1, began, began + 0.25)
    timeline.sent(1, "sparse", 17)
    timeline.ended(step)


def test_a_trace_has_a_process_per_rank_and_a_thread_per_bucket(tmp_path) -> None:
    group = ThreadGroup.make(2)[1]
    timeline = ExchangeTimeline(tmp_path / "trace.json")
    timeline.bind(LAYOUTS, group)
    before = time.time()
    _step(timeline, 4)
    timeline.close()
    timeline.close()
    events = json.loads((tmp_path / "trace.rank1.json").read_bytes())
    named = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert named == {1: "bucket 0: c .. b (2)", 2: "bucket 1: a"}
    (transfer,) = [event for event in events if event["name"] == "transfer"]
    assert transfer["tid"] == 2 and transfer["args"] == {"step": 4} and round(transfer["dur"]) == 250_000
    assert before <= transfer["ts"] / 1e6 <= time.time(), "the clock of the wall, so that ranks fit together"
    assert {event["pid"] for event in events} == {1}
    assert [event["args"]["values"] for event in events if event["name"] == "sparse"] == [17]
    assert [event["ph"] for event in events if event["name"] == "step 4"] == ["X"]


def test_traces_of_many_steps_are_written_in_pieces(tmp_path) -> None:
    timeline = ExchangeTimeline(str(tmp_path / "trace"))
    timeline.bind(LAYOUTS, ThreadGroup.make(1)[0])
    for step in range(600):
        _step(timeline, step)
    assert (tmp_path / "trace.rank0.json").stat().st_size > 0, "a long run does not pile up in memory"
    timeline.close()
    steps = [event["name"] for event in json.loads((tmp_path / "trace.rank0.json").read_bytes()) if event["ph"] == "X"]
    assert steps.count("transfer") == 600 and steps[-1] == "step 599"


def test_a_failed_step_is_on_disk_at_once_and_traces_cut_short_still_merge(tmp_path) -> None:
    timelines = [ExchangeTimeline(tmp_path / "trace.json") for _ in range(2)]
    for timeline, group in zip(timelines, ThreadGroup.make(2), strict=True):
        timeline.bind(LAYOUTS, group)
        _step(timeline, 0)
        timeline.begin(StepRecord(1))
        timeline.failed(RuntimeError("gone"))
    paths = [timeline.path for timeline in timelines]
    paths[1].write_bytes(paths[1].read_bytes()[:-10])
    assert any("gone" in str(event.get("args")) for event in read_timeline(paths[0]))
    merge_timelines(paths, tmp_path / "all.json")
    merged = json.loads((tmp_path / "all.json").read_bytes())["traceEvents"]
    assert {event["pid"] for event in merged} == {0, 1}
    assert len(merged) == 2 * len(read_timeline(paths[0])) - 1
    for timeline in timelines:
        timeline.close()


def test_a_trace_that_cannot_be_written_ends_and_raises_nothing(tmp_path, caplog) -> None:
    timeline = ExchangeTimeline(tmp_path / "no folder" / "trace.json")
    timeline.bind(LAYOUTS, ThreadGroup.make(1)[0])
    timeline.failed(RuntimeError("boom"))
    _step(timeline, 0)
    timeline.close()
    assert caplog.text.count("trace.rank0.json ends here") == 1


def test_a_member_that_gets_another_rank_goes_on_in_a_file_that_no_other_member_has_written(tmp_path) -> None:
    timelines = [ExchangeTimeline(tmp_path / "trace.json") for _ in range(3)]
    for timeline, group in zip(timelines, ThreadGroup.make(3), strict=True):
        timeline.bind(LAYOUTS, group)
        _step(timeline, 0)
    timelines[0].failed(RuntimeError("killed"))
    for timeline, group in zip(timelines[1:], ThreadGroup.make(2, epoch=4), strict=True):
        timeline.bind(LAYOUTS, group)
        _step(timeline, 1)
        timeline.bind(LAYOUTS, ThreadGroup.make(2, epoch=5)[group.rank])  # the same rank, and the same file
        timeline.close()
    steps = {
        path.name: [event["name"] for event in read_timeline(path) if event["name"].startswith("step")]
        for path in sorted(tmp_path.iterdir())
    }
    assert steps == {
        "trace.rank0.json": ["step 0", "step 0 failed"],
        "trace.rank0.epoch4.json": ["step 1"],
        "trace.rank1.json": ["step 0"],
        "trace.rank1.epoch4.json": ["step 1"],
        "trace.rank2.json": ["step 0"],
    }


def test_a_trace_goes_on_when_its_exchange_is_bound_again_after_close(tmp_path) -> None:
    group = ThreadGroup.make(1)[0]
    timeline = ExchangeTimeline(tmp_path / "trace.json")
    for step in range(3):
        timeline.bind(LAYOUTS, group)
        _step(timeline, step)
        timeline.close()
        _step(timeline, 100)  # between close and bind nothing is told
        events = json.loads((tmp_path / "trace.rank0.json").read_bytes())
        assert [event["name"] for event in events if event["name"].startswith("step")] == [
            f"step {number}" for number in range(step + 1)
        ]
