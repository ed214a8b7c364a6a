"""The ledger behind reports, and reports as tables and JSON."""

import json

from rich.console import Console

from ropewalk.exchange.buckets import BucketEntry, Layout
from ropewalk.exchange.exchange import ExchangeReport, StepRecord
from ropewalk.exchange.groups.thread_group import ThreadGroup
from ropewalk.exchange.reporting import Ledger, print_report, report_json

LAYOUTS = (Layout((BucketEntry("c", (50,)), BucketEntry("b", (50,)))), Layout((BucketEntry("a", (100,)),)))


def _bound():
    group = ThreadGroup.make(2)[0]
    ledger = Ledger()
    ledger.bind(LAYOUTS, group)
    return ledger, group


def _step(ledger: Ledger, group, step: int) -> ExchangeReport:
    ledger.begin(StepRecord(step))
    ledger.phase("encode", 0, 1.0, 1.5)
    ledger.phase("encode", 1, 1.5, 1.75)
    group.traffic.add("bucket 0", sent=40, received=30, headers_sent=8)
    group.traffic.add_layers({"c": 30, "b": 10})
    ledger.sent(0, "sparse", 10)
    ledger.sent(1, "dense", 100)
    return ledger.finish(samples=6.0, error_norm=0.5 + step)


def test_a_step_and_all_steps_are_added_up() -> None:
    ledger, group = _bound()
    first = _step(ledger, group, 0)
    assert (first.sent_bytes, first.received_bytes, first.header_bytes) == (40, 30, 8)
    assert first.dense_bytes == 800, "a ring of two sends each of 200 floats once"
    assert first.density == 110 / 200
    assert first.seconds == {"encode": 0.75} and first.modes == {"sparse": 1, "dense": 1}
    assert first.layers == {"c": 30, "b": 10} and sum(first.layers.values()) == first.sent_bytes
    _step(ledger, group, 1)
    total = ledger.report()
    assert (total.steps, total.sent_bytes, total.samples, total.error_norm) == (2, 80, 6.0, 1.5)
    assert total.layers == {"c": 60, "b": 20} and total.modes == {"sparse": 2, "dense": 2}


def test_bytes_of_a_failed_step_were_sent_all_the_same() -> None:
    ledger, group = _bound()
    ledger.begin(StepRecord(0))
    group.traffic.add("bucket 0", sent=40)
    ledger.note("step 0 failed")
    assert _step(ledger, group, 0).sent_bytes == 40
    total = ledger.report()
    assert (total.steps, total.sent_bytes, total.notes) == (1, 80, ("step 0 failed",))


def test_a_skipped_step_is_counted_and_noted() -> None:
    ledger, _group = _bound()
    ledger.begin(StepRecord(0))
    ledger.note("step 0 was skipped: NaN or infinity: rank 1 in a")
    assert ledger.finish(samples=2.0, skipped=True).skipped == 1
    assert ledger.report().skipped == 1


def test_counters_go_on_with_another_group() -> None:
    ledger, group = _bound()
    _step(ledger, group, 0)
    other = ThreadGroup.make(3, epoch=1)[0]
    other.traffic.add("setup", sent=1000)  # before the exchange was bound to it
    ledger.bind(LAYOUTS, other)
    _step(ledger, other, 1)
    assert ledger.report().sent_bytes == 80


def test_other_buckets_lose_no_bytes_that_were_counted() -> None:
    ledger, group = _bound()
    ledger.begin(StepRecord(0))
    group.traffic.add("bucket 0", sent=40)
    ledger.bind(LAYOUTS[:1], group)
    assert ledger.finish(samples=1.0).sent_bytes == 40


def test_notes_do_not_pile_up() -> None:
    ledger, _ = _bound()
    for step in range(300):
        ledger.begin(StepRecord(step))
        ledger.note(f"note {step}")
        ledger.finish(samples=1.0)
    assert len(ledger.report().notes) == 100 and ledger.report().notes[-1] == "note 299"


def test_a_report_shows_as_tables() -> None:
    ledger, group = _bound()
    for step in range(12):
        _step(ledger, group, step)
    ledger.note("step 12 was skipped: NaN or infinity: rank 1 in a")
    ledger.finish(samples=6.0, skipped=True)
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - closed with the console
    print_report(ledger.report(), console)
    console.file.close()
    shown = console.export_text()
    for words in (
        "13 steps",
        "5 %",
        "55 %",
        "encode",
        "692 ms",
        "12 dense, 12 sparse",
        "c ",
        "75 %",
        "note: step 12 was",
    ):
        assert words in shown, shown


def test_a_report_is_json_for_logs() -> None:
    ledger, group = _bound()
    read = json.loads(report_json(_step(ledger, group, 0)))
    assert read["sent_bytes"] == 40 and read["layers"] == {"c": 30, "b": 10} and read["notes"] == []
