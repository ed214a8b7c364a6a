"""What every store does, on whatever database: the classes of `test_store.py` and `test_postgresql.py` inherit it."""

from __future__ import annotations

import math
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError

from ropewalk.errors import RunNotFound, RunStillRunning, StoreError
from ropewalk.tracking.records import (
    ArtifactKept,
    AttemptBegan,
    AttemptEnded,
    AttemptResumed,
    CheckpointKept,
    CheckpointRemoved,
    ConfigIs,
    EventHappened,
    LabelsAre,
    Metrics,
    NoteAdded,
    OwnerIs,
    StateIs,
)
from ropewalk.tracking.store import applying, metric_rows
from ropewalk.tracking.store.blocks import FAN, FULL
from ropewalk.tracking.store.rows import (
    ArtifactRow,
    AttemptRow,
    CheckpointRow,
    EventRow,
    NoteRow,
)
from ropewalk.tracking.store.schema import BLOCKS, SERIES
from ropewalk.tracking.store.store import RunStore
from tests.forked_process import ForkedProcess
from tests.tracking.store.making import NOW, begin, logged, of, own_process, running

nan, inf = math.nan, math.inf


def num_blocks(store: RunStore) -> int:
    with store._engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(BLOCKS)).scalar_one()


def is_file(store: RunStore) -> bool:
    """Whether only this user can have written the store."""
    return store._engine.dialect.name == "sqlite"


class Runs:
    """Runs and how they are found."""

    def test_a_label_and_a_note_are_no_sign_of_life(self, store: RunStore, again: Callable[[], RunStore]) -> None:
        # A run that was lost on another host was running again for a minute, and had taken until then.
        begin(store, "a", StateIs("running", NOW))
        heard = store.run("a").heard
        with again() as other:  # a store writes this time only every ten seconds
            other.apply([*of("a", LabelsAre(["bad"])), *of("a", NoteAdded("why?", NOW))])
            assert other.run("a").heard == heard and other.run("a").labels == ("bad",)
            other.apply(of("a", Metrics("", ["loss"], [1.0], 1.0, NOW)))
            assert other.run("a").heard > heard

    def test_runs_are_found_by_their_user(self, store: RunStore) -> None:
        begin(store, "a", facts={"user": "ada", "packages": {"user": "1"}})
        begin(store, "b", facts={"user": "b\u00f6b"})
        begin(store, "c", facts={})
        begin(store, "a-1", kind="trial", parent="a", facts={"seed": 1})
        assert {run.id for run in store.runs(user="ada")} == {"a", "a-1"}
        assert store.users(store.runs()) == {"a": "ada", "b": "b\u00f6b", "c": "", "a-1": "ada"}
        assert len(store.runs(user="ada", limit=1)) == 1

    def test_what_a_run_was_given_comes_back(self, store: RunStore) -> None:
        config = {"lr": 1e-4, "model": {"layers": [64, 64], "act": "relu"}, "clip": inf, "seed": None, "ü": "é"}
        facts = {"argv": ["train.py", "--fast"], "git": {"commit": "abc", "diff": "+ x\n"}}
        begin(
            store, "r1", config=config, facts=facts, labels=["b", "a"], name="first", kind="trial", folder="/runs/r1",
            parent="s1", parent_step=7.0,
        )  # fmt: skip
        run = store.run("r1")
        assert (run.id, run.project, run.name, run.kind, run.state) == ("r1", "digits", "first", "trial", "queued")
        assert (run.config, run.labels, store.facts("r1")) == (config, ("a", "b"), facts)
        assert (run.parent, run.parent_step, run.folder, run.archived) == ("s1", 7.0, "/runs/r1", False)
        assert (run.created, run.changed, run.owner) == (NOW, NOW, None)

    def test_a_run_is_found_by_its_id_its_name_and_the_beginning_of_its_id(self, store: RunStore) -> None:
        begin(store, "aa11", name="brisk")
        begin(store, "aa22", name="calm")
        assert [store.run(ref).id for ref in ("aa11", "calm", "aa2")] == ["aa11", "aa22", "aa22"]

    def test_an_id_comes_before_a_name_and_a_name_before_a_beginning(self, store: RunStore) -> None:
        begin(store, "abc", name="x")
        begin(store, "abcd", name="abc")
        begin(store, "xyz", name="y")
        assert [store.run(ref).id for ref in ("abc", "x")] == ["abc", "abc"]

    def test_what_may_mean_several_runs_names_them(self, store: RunStore) -> None:
        for run in ("aa11", "aa22"):
            begin(store, run, name="twice", time=NOW + int(run[-1]))
        for ref in ("aa", "twice"):
            with pytest.raises(RunNotFound, match=r"may mean aa22 \(twice, queued\), aa11 .*; give an id") as caught:
                store.run(ref)
            assert caught.value.candidates == ("aa22", "aa11")

    def test_an_unknown_run_is_answered_with_the_near_one(self, store: RunStore) -> None:
        with pytest.raises(RunNotFound, match="the store has no runs"):
            store.run("r1")
        begin(store, "aa11", name="brisk-otter")
        with pytest.raises(RunNotFound, match="did you mean brisk-otter") as caught:
            store.run("brisk-oter")
        assert caught.value.candidates == ("aa11",)
        with pytest.raises(RunNotFound, match="`ropewalk runs list` shows all"):
            store.run("zzzzzzzz")
        for ref in ("", "%", "_a11"):
            with pytest.raises(RunNotFound):
                store.run(ref)

    def test_runs_are_found_by_what_they_are(self, store: RunStore) -> None:
        begin(store, "a", project="p", kind="trial", parent="s", labels=["x", "y"])
        begin(store, "b", project="q", kind="trial", labels=["x"])
        begin(store, "c", project="p", kind="search")
        store.archive("c")

        def found(**wanted: object) -> list[str]:
            return [run.id for run in store.runs(**wanted)]  # type: ignore[arg-type]

        assert found(project="p") == ["a"]
        assert found(kind="trial") == ["a", "b"]
        assert (found(parent="s"), found(parent="")) == (["a"], ["b"])
        assert (found(labels=["x"]), found(labels=["x", "y"]), found(labels=["z"])) == (["a", "b"], ["a"], [])
        assert (found(), found(archived=True), found(archived=None)) == (["a", "b"], ["c"], ["a", "b", "c"])

    def test_runs_are_found_by_their_state(self, store: RunStore) -> None:
        begin(store, "a")
        begin(store, "b", StateIs("done", NOW))
        running(store, "c")
        begin(store, "d", OwnerIs("elsewhere", 7, 5, "x"), StateIs("running", NOW))
        later = store.run("d").heard + 61
        store._clock = lambda: later
        assert [run.id for run in store.runs(states=["queued", "done"])] == ["a", "b"]
        assert [run.id for run in store.runs(states=["running"])] == ["c"]
        assert [run.id for run in store.runs(states=["lost"], limit=1)] == ["d"]
        assert [run.id for run in store.runs(states=["lost", "running"], order="-created", limit=1)] == ["d"]
        with pytest.raises(ValueError, match=r"'runing' is not a state of a run; they are queued, .*, lost"):
            store.runs(states=["runing"])
        # The second found none, since no run had the labels g, o and d.
        wrong: list[dict[str, Any]] = [{"states": "done"}, {"labels": "good"}]
        for given in wrong:
            with pytest.raises(TypeError, match=r"is the text '.*'; give a list, \['"):
                store.runs(**given)

    @pytest.mark.parametrize("text", ["DIGITS", "irst", "r1", "relu", "oom", "Night", "100%", "a_b"])
    def test_runs_are_found_by_a_text(self, store: RunStore, text: str) -> None:
        begin(store, "r1", StateIs("failed", NOW, "OOM"), config={"act": "relu"}, labels=["nightly", "100%", "a_b"])
        begin(store, "x2", project="other", name="100 aXb")
        assert [run.id for run in store.runs(text=text)] == ["r1"]

    def test_runs_come_in_an_order(self, store: RunStore) -> None:
        for run, name, time in (("a", "z", 3), ("b", "y", 1), ("c", "x", 2)):
            begin(store, run, name=name, time=NOW + time)
        assert [run.id for run in store.runs()] == ["b", "c", "a"]
        assert [run.id for run in store.runs(order="-created", limit=2)] == ["a", "c"]
        assert [run.id for run in store.runs(order="name")] == ["c", "b", "a"]
        assert store.runs(limit=0) == []
        with pytest.raises(ValueError, match=r"ordered by created, changed, .* not 'age'"):
            store.runs(order="age")

    def test_a_run_that_is_there_is_not_made_again(self, store: RunStore) -> None:
        begin(store, "r1", StateIs("done", NOW), name="first")
        begin(store, "r1", name="second", facts={"x": 1})
        assert (store.run("r1").name, store.run("r1").state, store.facts("r1")) == ("first", "done", {})

    def test_the_runs_of_a_run_are_its_children(self, store: RunStore) -> None:
        begin(store, "s", kind="search")
        begin(store, "t1", parent="s")
        begin(store, "t2", parent="s", time=NOW + 1)
        store.archive("t2")
        assert [run.id for run in store.children("s")] == ["t1", "t2"]


class Records:
    """Everything but metrics."""

    def test_a_run_changes_its_state(self, store: RunStore) -> None:
        running(store)
        assert store.run("r1").state == "running"
        store.apply(of("r1", StateIs("failed", NOW + 5, "ValueError: no")))
        run = store.run("r1")
        assert (run.state, run.changed, run.why) == ("failed", NOW + 5, "ValueError: no")

    def test_settings_are_added_and_replaced_by_name(self, store: RunStore) -> None:
        begin(store, config={"lr": 1, "model": {"a": 1}})
        store.apply(of("r1", ConfigIs({"model": {"b": 2}, "n": 3})))
        assert store.run("r1").config == {"lr": 1, "model": {"b": 2}, "n": 3}

    def test_labels_are_added_and_removed(self, store: RunStore) -> None:
        begin(store, labels=["a", "b"])
        store.apply(of("r1", LabelsAre(["c", "a"], ["b"])))
        assert store.run("r1").labels == ("a", "c")

    def test_notes_and_events_keep_their_order(self, store: RunStore) -> None:
        begin(store)
        store.apply(of("r1", NoteAdded("two", NOW + 2), NoteAdded("one", NOW + 1)))
        store.apply(of("r1", EventHappened("death", "pid 7", NOW, {"pid": 7}), EventHappened("retry", "", NOW)))
        assert store.notes("r1") == [NoteRow("two", NOW + 2), NoteRow("one", NOW + 1)]
        assert store.events("r1") == [EventRow("death", "pid 7", NOW, {"pid": 7}), EventRow("retry", "", NOW, {})]

    def test_artifacts_keep_their_facts(self, store: RunStore) -> None:
        begin(store)
        store.apply(of("r1", ArtifactKept("a.png", "/r/a.png", "image", 2**40, "ff", NOW, 3.0, "image/png")))
        assert store.artifacts("r1") == [ArtifactRow("a.png", "/r/a.png", "image", 2**40, "ff", NOW, 3.0, "image/png")]

    def test_checkpoints_are_kept_replaced_and_removed(self, store: RunStore) -> None:
        begin(store)
        store.apply(of("r1", *(CheckpointKept(step, f"/c/{step}", 10, NOW, nan) for step in (2.0, 1.0, 3.0))))
        store.apply(of("r1", CheckpointKept(2.0, "/c/new", 11, NOW, 0.5), CheckpointRemoved(3.0), CheckpointRemoved(9)))
        assert store.checkpoints("r1") == [
            CheckpointRow(1.0, "/c/1.0", 10, NOW, None),
            CheckpointRow(2.0, "/c/new", 11, NOW, 0.5),
        ]

    def test_attempts_have_a_beginning_and_an_end(self, store: RunStore) -> None:
        begin(store)
        store.apply(of("r1", AttemptBegan(1, "h", 7, NOW, 5.0)))
        assert store.attempts("r1") == [AttemptRow(1, "h", 7, NOW, 5.0, "", None, "", "", None)]
        store.apply(of("r1", AttemptEnded(1, "failed", NOW + 9, "Traceback", "ValueError at f", 8.0)))
        store.apply(of("r1", AttemptEnded(2, "lost", NOW + 10, "killed by signal 9")))
        assert store.attempts("r1") == [
            AttemptRow(1, "h", 7, NOW, 5.0, "failed", NOW + 9, "Traceback", "ValueError at f", 8.0),
            AttemptRow(2, "", 0, NOW + 10, 0.0, "lost", NOW + 10, "killed by signal 9", "", 0.0),
        ]

    def test_an_attempt_goes_on_from_a_checkpoint_that_it_loads_later(self, store: RunStore) -> None:
        begin(store)
        store.apply(of("r1", AttemptBegan(1, "h", 7, NOW), AttemptBegan(2, "h", 8, NOW + 1), AttemptResumed(2, 4.0)))
        store.apply(of("r1", AttemptResumed(3, 9.0)))  # of no attempt
        assert [(one.number, one.from_step) for one in store.attempts("r1")] == [(1, 0.0), (2, 4.0)]
        store.apply(of("r1", AttemptResumed(2, 6.0), AttemptEnded(2, "done", NOW + 2)))
        assert store.attempts("r1")[1] == AttemptRow(2, "h", 8, NOW + 1, 6.0, "done", NOW + 2, "", "", 0.0)

    def test_a_batch_leaves_what_its_records_leave_one_by_one(self, store: RunStore) -> None:
        records = [
            *(LabelsAre(["a", "b"]), LabelsAre(["c"], ["a"]), LabelsAre([], ["b"]), LabelsAre(["b"])),
            *(ConfigIs({"lr": 1, "n": 1}), ConfigIs({"lr": 2})),
            *(StateIs("running", NOW), StateIs("paused", NOW + 1, "asked"), StateIs("running", NOW + 2)),
            *(CheckpointKept(1.0, "/c/1", 10, NOW), CheckpointKept(2.0, "/c/2", 10, NOW)),
            *(CheckpointRemoved(1.0), CheckpointRemoved(2.0), CheckpointKept(1.0, "/c/new", 11, NOW)),
            *(AttemptBegan(1, "h", 7, NOW), AttemptEnded(1, "paused", NOW + 1), AttemptBegan(2, "h", 8, NOW + 2)),
            AttemptResumed(2, 3.0),
            *(EventHappened("one", "", NOW), NoteAdded("one", NOW), EventHappened("two", "", NOW)),
        ]
        begin(store, "whole")
        begin(store, "parts")
        store.apply(of("whole", *records))
        for record in records:
            store.apply(of("parts", record))
        whole, parts = store.run("whole"), store.run("parts")
        assert (whole.labels, whole.config, whole.state, whole.changed, whole.why) == (
            *(parts.labels, parts.config, parts.state, parts.changed, parts.why),
        )
        assert (whole.labels, whole.config, whole.state) == (("b", "c"), {"lr": 2, "n": 1}, "running")
        for rows in (store.checkpoints, store.attempts, store.events, store.notes):
            assert rows("whole") == rows("parts") != []

    def test_records_of_a_run_that_is_not_there_are_dropped(
        self, store: RunStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        begin(store)
        for _ in range(2):
            store.apply([*of("gone", StateIs("done", NOW), *logged("x", [1])), *of("r1", NoteAdded("kept", NOW))])
        assert [record.message for record in caplog.records] == [
            "records of run gone are dropped: the store has no such run; it may have been deleted"
        ]
        assert (len(store.notes("r1")), len(store.runs()), num_blocks(store)) == (2, 1, 0)

    def test_a_record_that_no_database_takes_is_left_out_and_the_others_are_stored(
        self, store: RunStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        begin(store)
        wrong = [
            AttemptBegan(2**70, "h", 7, NOW),
            StateIs("asleep", NOW),
            Metrics("", ["a", "b"], [1.0], 1, NOW),
            Metrics("", ["a"], ["high"], 1, NOW),  # type: ignore[list-item]
        ]
        store.apply(of("r1", *logged("x", [1]), *wrong, NoteAdded("kept", NOW), *logged("x", [2], first=2)))
        assert store.points("r1", "x").values.tolist() == [1, 2]
        assert ([note.text for note in store.notes("r1")], store.attempts("r1")) == (["kept"], [])
        assert sum("a record of run r1 is left out" in record.message for record in caplog.records) == len(wrong)

    def test_every_text_is_taken(self, store: RunStore) -> None:
        begin(store, name="nul \0 and \udc80", config={"k\0": "v\0\udcff", "o": object}, labels=["\0"])
        store.apply(of("r1", NoteAdded("é" * 2**21, NOW), Metrics("g\0", ["m\0"], [1.0], 1, NOW)))
        run = store.run("r1")
        assert (run.name, run.config["k\0"], run.labels) == ("nul \ufffd and ?", "v\0\udcff", ("\ufffd",))
        note = store.notes("r1")[0].text
        assert len(note) < 2**21 and "characters left out" in note
        assert store.points("r1", "m\ufffd", "g\ufffd").values.tolist() == [1]


class MetricsInBlocks:
    """Metrics, and the blocks that they are stored in."""

    def test_points_of_two_processes_are_in_the_order_of_their_times(self, store: RunStore) -> None:
        begin(store)
        store.apply(of("r1", *logged("loss", [0.3, 0.2], first=3)))  # of the second, whose records were faster
        store.apply(of("r1", *logged("loss", [0.5, 0.4])))
        assert list(store.points("r1", "loss").values) == [0.5, 0.4, 0.3, 0.2]
        (series,) = store.series("r1")
        assert (series.last, series.last_step, series.last_time, series.count) == (0.2, 4, NOW + 4, 4)

    def test_numbers_come_back_as_they_were(self, store: RunStore) -> None:
        begin(store)
        values = [0.1, nan, inf, -inf, 5e-324, -0.0, 1e308]
        store.apply(of("r1", *(Metrics("", ["x"], [v], i / 3, NOW + i) for i, v in enumerate(values))))
        points = store.points("r1", "x")
        assert points.values.tobytes() == np.array(values).tobytes()
        assert points.steps.tolist() == [i / 3 for i in range(7)]
        assert points.times.tolist() == [NOW + i for i in range(7)]

    def test_groups_are_apart(self, store: RunStore) -> None:
        begin(store)
        store.apply(of("r1", *logged("x", [1]), *logged("x", [2], group="system")))
        assert (store.points("r1", "x").values, store.points("r1", "x", "system").values) == ([1], [2])
        assert [(series.group, series.name) for series in store.series("r1")] == [("", "x"), ("system", "x")]
        assert len(store.points("r1", "y")) == len(store.points("r2", "x")) == 0

    def test_a_series_keeps_its_order_beside_changing_others(self, store: RunStore) -> None:
        begin(store)
        records = [
            Metrics("", ["x", "y"] if step % 3 else ["z", "x"], [step, step], step, NOW)
            for step in map(float, range(30))
        ]
        store.apply(of("r1", *records))
        assert store.points("r1", "x").steps.tolist() == list(range(30))
        assert store.points("r1", "z").steps.tolist() == list(range(0, 30, 3))

    def test_a_series_knows_its_extremes_its_mean_and_its_last_value(self, store: RunStore) -> None:
        begin(store)
        for values in ([3.0, nan], [1.0], [nan, nan], [8.0, 2.0]):
            store.apply(of("r1", *logged("x", values)))
        series = store.series("r1")[0]
        assert (series.count, series.num_nan, series.min, series.max, series.mean) == (7, 3, 1.0, 8.0, 3.5)
        assert (series.last, series.last_step, series.last_time) == (2.0, 2.0, NOW + 2)

    @pytest.mark.parametrize(
        ("values", "expected"),
        [([nan], (nan, nan, nan)), ([inf, -inf], (-inf, inf, nan)), ([inf, 1], (1, inf, inf))],
    )
    def test_extremes_of_strange_numbers(
        self, store: RunStore, values: list[float], expected: tuple[float, float, float]
    ) -> None:
        begin(store)
        for value in values:
            store.apply(of("r1", *logged("x", [value])))
        series = store.series("r1")[0]
        np.testing.assert_array_equal([series.min, series.max, series.mean], expected)
        np.testing.assert_array_equal(series.last, values[-1])

    def test_points_survive_merging_in_batches_of_any_size(self, store: RunStore) -> None:
        begin(store)
        rng = random.Random(1)
        expected: dict[str, list[float]] = {"x": [], "y": []}
        for _ in range(100):
            records: list[Metrics] = []
            for name in rng.sample(["x", "y"], rng.randint(1, 2)):
                values = [rng.random() for _ in range(rng.choice([1, 1, 1, 2, 70]))]
                records += logged(name, values, first=len(expected[name]) + 1)
                expected[name] += values
            store.apply(of("r1", *records))
        for name, values in expected.items():
            points = store.points("r1", name)
            assert points.values.tolist() == values
            assert points.steps.tolist() == list(range(1, len(values) + 1))
        assert num_blocks(store) <= 2 * FAN * 4

    def test_the_blocks_of_a_run_that_ends_are_merged(self, store: RunStore) -> None:
        running(store)
        for step in range(FAN - 1):
            store.apply(of("r1", *logged("x", [step], first=step), *logged("y", [step], first=step)))
        assert num_blocks(store) == 2 * (FAN - 1)
        store.apply(of("r1", *logged("x", [99.0], first=FAN), StateIs("paused", NOW)))
        assert num_blocks(store) == 2
        store.apply(of("r1", StateIs("running", NOW), *logged("x", [100.0], first=FAN + 1)))
        assert store.points("r1", "x").values.tolist() == [*range(FAN - 1), 99, 100]

    def test_merging_after_another_process_has_merged_keeps_the_order(
        self, store: RunStore, again: Callable[[], RunStore]
    ) -> None:
        """What this writer remembers of the blocks is wrong then, while the number of points is right."""
        running(store)
        first = 0
        for size in (FULL - 1, *[400] * (FAN - 1)):
            store.apply(of("r1", *logged("x", range(first, first + size), first=first)))
            first += size
        with again() as other, other._engine.begin() as connection:
            id = connection.execute(select(SERIES.c.id)).scalar_one()
            metric_rows._merge(connection, {id: (metric_rows._Tail(first, [400] * (FAN - 1)), FAN - 1)})
        store.apply(of("r1", *logged("x", range(first, first + 600), first=first)))
        assert store.points("r1", "x").values.tolist() == list(range(first + 600))
        store.apply(of("r1", StateIs("done", NOW)))
        assert store.points("r1", "x").steps.tolist() == list(range(first + 600))

    def test_two_writers_of_one_series_lose_nothing(self, store: RunStore, again: Callable[[], RunStore]) -> None:
        begin(store)
        with again() as other:
            for step in range(40):
                writer = (store, other)[step % 3 == 0]
                writer.apply(of("r1", *logged("x", [step], first=step)))
            assert other.points("r1", "x").values.tolist() == list(range(40))
        store.apply(of("r1", StateIs("done", NOW)))
        assert store.points("r1", "x").values.tolist() == list(range(40))

    def test_points_that_a_reader_has_are_left_out(self, store: RunStore) -> None:
        running(store)
        for step in range(FAN + 3):  # the first ones become one block
            store.apply(of("r1", *logged("x", [2 * step, 2 * step + 1], first=2 * step)))
        num = 2 * (FAN + 3)
        for after in range(num + 2):
            assert store.points("r1", "x", after=after).values.tolist() == list(range(after, num)), after
        assert store.points("r1", "none", after=1).values.tolist() == []

    def test_a_curve_is_drawn_with_few_points_that_keep_its_extremes(self, store: RunStore) -> None:
        begin(store)
        values = [0.0] * 1000
        values[517], values[703] = 9.0, nan
        store.apply(of("r1", *logged("x", values)))
        points = store.points("r1", "x", max_points=20)
        assert len(points) <= 20
        assert points.steps[0] == 1 and points.steps[-1] == 1000
        assert points.steps[points.values == 9.0].tolist() == [518]
        assert points.steps[np.isnan(points.values)].tolist() == [704]

    def test_the_last_values_of_many_runs_come_at_once(self, store: RunStore) -> None:
        for run in ("a", "b", "c"):
            begin(store, run)
        store.apply([*of("a", *logged("x", [1, 2])), *of("b", *logged("x", [nan]), *logged("y", [3], group="system"))])
        found = store.last_values(["a", "b"])
        assert found["a"] == {"x": 2} and math.isnan(found["b"].pop("x")) and found["b"] == {}
        assert store.last_values(["b", "c"], "system") == {"b": {"y": 3}, "c": {}}
        assert (
            store.last_values(["a"], None) == {"a": {"x": 2}} and store.last_values(["b"], None)["b"]["system/y"] == 3
        )

    def test_the_pulse_changes_when_something_does(self, store: RunStore) -> None:
        begin(store, "a")
        pulses = [store.pulse()]
        for change in (
            lambda: store.apply(of("a", *logged("x", [1]))),
            lambda: store.apply(of("a", LabelsAre(["b"]))),
            lambda: store.archive("a"),
            lambda: begin(store, "c"),
            lambda: store.apply(of("c", StateIs("done", NOW + 5))),
        ):
            change()
            pulses.append(store.pulse())
        assert len({pulse[:4] for pulse in pulses}) >= 5 and store.pulse() == pulses[-1]

    def test_runs_are_found_by_when_they_were_heard(self, store: RunStore) -> None:
        begin(store, "a")
        heard = store.run("a").heard
        assert [run.id for run in store.runs(heard_since=heard)] == ["a"]
        assert store.runs(heard_since=heard + 1.0) == []

    def test_a_failed_transaction_leaves_nothing_and_can_be_repeated(
        self, store: RunStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begin(store)
        store.apply(of("r1", *logged("x", [1])))
        batch = of("r1", *logged("x", [2], first=2), *logged("new", [5]), StateIs("done", NOW))

        def fail(*_: object) -> None:
            raise OperationalError("UPDATE", {}, Exception("the disk is gone"))

        with monkeypatch.context() as patched:
            patched.setattr(applying, "merge_all", fail)
            with pytest.raises(StoreError, match="the disk is gone"):
                store.apply(batch)
        assert [series.name for series in store.series("r1")] == ["x"]
        store.apply(batch)
        assert store.points("r1", "x").values.tolist() == [1, 2]
        assert store.points("r1", "new").values.tolist() == [5]


class Requests:
    """What is asked of the process that owns a run."""

    def test_a_request_is_open_until_it_is_answered(self, store: RunStore) -> None:
        for run in ("a", "b"):
            begin(store, run)
        first, second = store.request("a", "pause"), store.request("b", "fork", {"set": {"lr": 1}})
        assert first < second
        (found,) = store.requests(["b"])
        assert (found.number, found.run, found.action, found.data) == (second, "b", "fork", {"set": {"lr": 1}})
        assert (found.answered, found.ok, found.answer) == (None, None, "")
        assert [one.number for one in store.requests(["a", "b", "c"])] == [first, second]
        store.answer(second, True, "paused at step 7")
        assert store.requests(["b"]) == []
        answered = store.requested(second)
        assert answered and (answered.ok, answered.answer) == (True, "paused at step 7") and answered.answered

    def test_the_first_answer_counts(self, store: RunStore) -> None:
        begin(store)
        number = store.request("r1", "stop")
        store.answer(number, False, "nobody answered")
        store.answer(number, True, "stopped")
        answered = store.requested(number)
        assert answered and (answered.ok, answered.answer) == (False, "nobody answered")

    def test_a_run_that_ends_answers_what_nobody_has_answered(self, store: RunStore) -> None:
        for run in ("a", "b"):
            begin(store, run, StateIs("running", NOW))
        number, other = store.request("a", "pause"), store.request("b", "pause")
        store.apply(of("a", StateIs("done", NOW)))
        answered = store.requested(number)
        assert answered and (answered.ok, answered.answer) == (False, "it had ended already, and is done")
        assert [one.number for one in store.requests(["a", "b"])] == [other]

    @pytest.mark.parametrize("state", ["done", "paused", "failed", "stopped"])
    def test_a_request_that_comes_after_the_end_is_answered_at_once(self, store: RunStore, state: str) -> None:
        begin(store, "a", StateIs(state, NOW))
        answered = store.requested(store.request("a", "stop"))
        assert answered and (answered.ok, answered.answer) == (False, f"it had ended already, and is {state}")

    def test_what_a_process_that_died_has_left_is_not_for_the_next_one(self, store: RunStore) -> None:
        begin(store, "a", StateIs("running", NOW))
        number = store.request("a", "pause")
        store.apply(of("a", StateIs("running", NOW)))
        assert store.requests(["a"]) == []
        answered = store.requested(number)
        assert answered and not answered.ok and "has ended without an answer" in answered.answer

    def test_a_trial_is_answered_by_its_search_until_that_ends(self, store: RunStore) -> None:
        begin(store, "s", StateIs("running", NOW), kind="search")
        for trial in ("paused", "done", "fork"):
            given = {"parent_step": 3.0} if trial == "fork" else {}
            begin(store, trial, StateIs("running", NOW), kind="trial", parent="s", **given)
        before = {trial: store.request(trial, "continue") for trial in ("paused", "done", "fork")}
        store.apply(of("paused", StateIs("paused", NOW)))
        store.apply(of("done", StateIs("done", NOW)))
        after = store.request("paused", "continue")
        open_ones = [one.number for one in store.requests(["paused", "done", "fork"])]
        assert open_ones == [before["paused"], before["fork"], after], "the search answers for what is paused"
        store.apply(of("s", StateIs("done", NOW)))
        assert [one.number for one in store.requests(["paused", "done", "fork"])] == [before["fork"]]
        late = store.requested(store.request("paused", "continue"))
        assert late and late.answer == "it had ended already, and is paused"

    def test_requests_to_runs_that_are_not_there_are_refused(self, store: RunStore) -> None:
        with pytest.raises(RunNotFound):
            store.request("r1", "stop")
        assert store.requested(1) is None

    def test_the_number_of_a_request_is_not_used_again(self, store: RunStore) -> None:
        begin(store, "a")
        begin(store, "b")
        number = store.request("a", "stop")
        store.delete("a")
        assert store.requested(number) is None
        assert store.request("b", "stop") > number


class LongNames:
    """PostgreSQL refused names above 2704 bytes, again and again, so that nothing of that process was stored."""

    LONG = (
        "".join(map(chr, range(0x4E00, 0x4E00 + 2000))) + "x" * 3000,
        "".join(map(chr, range(0x4E00, 0x4E00 + 5000))),
    )

    def test_names_of_any_length_are_stored_cut_and_stay_apart(self, store: RunStore) -> None:
        one, other = self.LONG[0] + "1", self.LONG[0] + "2"
        begin(store, "a", *logged(one, [1.0], group=self.LONG[1]), *logged(other, [2.0], group=self.LONG[1]),
              labels=[one, other, "short"], name=one, project=self.LONG[1])  # fmt: skip
        row, series = store.run("a"), store.series("a")
        assert len(row.labels) == 3 and "short" in row.labels and len(series) == 2
        assert {each.last for each in series} == {1.0, 2.0}
        names = [row.name, row.project, *row.labels, *(each.name for each in series), *(each.group for each in series)]
        assert max(map(len, names)) <= 300


class Removal:
    """Runs that are archived and deleted."""

    def test_a_run_is_archived_with_the_runs_that_belong_to_it(self, store: RunStore) -> None:
        begin(store, "s")
        begin(store, "t", parent="s")
        store.archive("s")
        assert [run.id for run in store.runs(archived=True)] == ["s", "t"]
        store.unarchive("s")
        assert [run.id for run in store.runs()] == ["s", "t"]

    def test_a_run_is_deleted_with_everything_that_belongs_to_it_but_its_forks(self, store: RunStore) -> None:
        begin(store, "s", labels=["x"])
        begin(store, "t", NoteAdded("n", NOW), AttemptBegan(1, "h", 7, NOW), *logged("x", [1]), parent="s")
        begin(store, "fork", parent="s", parent_step=3.0)
        assert store.delete("s") == ["s", "t"]
        assert [run.id for run in store.runs()] == ["fork"]
        assert num_blocks(store) == 0
        assert store.notes("t") == store.attempts("t") == store.series("t") == []

    def test_a_run_that_runs_is_not_deleted(self, store: RunStore) -> None:
        begin(store, "s")
        running(store, "t", parent="s")
        with pytest.raises(RunStillRunning, match=r"run t of s cannot be deleted .* ropewalk runs stop t") as caught:
            store.delete("s")
        assert caught.value.runs == ("t",)
        assert len(store.runs()) == 2

    def test_a_lost_run_can_be_deleted(self, store: RunStore) -> None:
        begin(store, "r1", OwnerIs(own_process().host, 2**22 + 1, 0, own_process().boot), StateIs("running", NOW))
        assert store.run("r1").state == "lost"
        store.delete("r1")
        assert store.runs() == []

    @pytest.mark.parametrize("id", ["0123456789ab", "0123456789-7", "0123456789abcdef.t3"])
    def test_the_folder_of_a_run_is_deleted_with_it(self, store: RunStore, tmp_path: Path, id: str) -> None:
        store.folder = tmp_path
        folder = tmp_path / id
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "checkpoints" / "weights").write_text("x")
        begin(store, id, folder=str(folder))
        store.delete(id)
        assert [path.name for path in tmp_path.iterdir() if id in path.name] == []

    @pytest.mark.parametrize("way", ["by its path", "by a way round", "by a link"])
    def test_a_database_leads_to_no_folder_outside_of_that_of_the_runs(
        self, store: RunStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str
    ) -> None:
        """Hexadecimal names are also those of snapshots of models, of layers, of objects."""
        snapshot = tmp_path / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
        snapshot.mkdir(parents=True)
        (snapshot / "model").write_text("x")
        store.folder = tmp_path / "runs"
        store.folder.mkdir()
        named = snapshot
        if way == "by a link":
            (store.folder / "link").symlink_to(snapshot.parent)
            named = store.folder / "link" / snapshot.name
        elif way == "by a way round":
            named = store.folder / os.path.relpath(snapshot, store.folder)
        begin(store, snapshot.name, folder=str(named))
        store.delete(snapshot.name)
        assert (snapshot / "model").exists() != is_file(store)
        assert ("is left where it is" in caplog.text) != is_file(store)

    def test_a_folder_whose_name_was_no_accident_is_not_deleted(self, store: RunStore, tmp_path: Path) -> None:
        (tmp_path / "thesis").mkdir()
        (tmp_path / "thesis" / "chapter.tex").write_text("x")
        begin(store, "thesis", folder=str(tmp_path / "thesis"))
        store.delete("thesis")
        assert (tmp_path / "thesis" / "chapter.tex").exists()

    def test_of_a_folder_that_is_not_of_a_run_alone_only_its_files_are_deleted(
        self, store: RunStore, tmp_path: Path
    ) -> None:
        folder, outside = tmp_path / "home", tmp_path / "outside"
        for place in (folder, folder / "step-1", outside):
            place.mkdir()
        for file in (folder / "thesis.tex", folder / "plot.png", folder / "step-1" / "weights", outside / "data"):
            file.write_text("x")
        (folder / "link").symlink_to(outside)
        paths = [folder / "plot.png", outside / "data", folder / "link" / "data", folder, folder / ".." / "outside"]
        artifacts = [ArtifactKept(str(n), str(path), "file", 1, "", NOW) for n, path in enumerate(paths)]
        begin(store, "r1", *artifacts, CheckpointKept(1, str(folder / "step-1"), 1, NOW), folder=str(folder))
        store.delete("r1")
        kept = ["link", "thesis.tex"] if is_file(store) else ["link", "plot.png", "step-1", "thesis.tex"]
        assert sorted(path.name for path in folder.iterdir()) == kept
        assert (outside / "data").exists()

    def test_a_link_in_place_of_a_folder_is_not_followed(self, store: RunStore, tmp_path: Path) -> None:
        (tmp_path / "precious").mkdir()
        (tmp_path / "precious" / "data").write_text("x")
        (tmp_path / "0123456789ab").symlink_to(tmp_path / "precious")
        begin(store, "0123456789ab", folder=str(tmp_path / "0123456789ab"))
        store.delete("0123456789ab")
        assert (tmp_path / "precious" / "data").exists()

    def test_records_of_a_deleted_run_are_dropped(self, store: RunStore, caplog: pytest.LogCaptureFixture) -> None:
        begin(store)
        store.apply(of("r1", *logged("x", [1])))
        store.delete("r1")
        store.apply(of("r1", *logged("x", [2])))
        assert num_blocks(store) == 0
        assert "r1 are dropped" in caplog.text


class Processes:
    """Owners that die, forked children, threads."""

    def test_a_run_is_lost_when_its_process_is_killed(self, store: RunStore, again: Callable[[], RunStore]) -> None:
        def work() -> None:
            with again() as other:
                running(other)

        with ForkedProcess(work) as process:
            process.wait_until_done()
            assert store.run("r1").state == "running"
            process.kill()
        assert store.run("r1").state == "lost"
        assert [run.id for run in store.runs(states=["lost"])] == ["r1"]

    def test_a_forked_child_uses_the_store_of_its_parent(self, store: RunStore) -> None:
        begin(store)
        store.apply(of("r1", *logged("x", [1])))

        def connections() -> set[object]:
            with store._engine.connect() as first, store._engine.connect() as second:
                return {first.connection.driver_connection, second.connection.driver_connection}

        of_parent = connections()

        def work() -> None:
            store.apply(of("r1", *logged("x", [2])))
            assert not connections() & of_parent  # neither database allows it

        with ForkedProcess(work) as process:
            process.wait_until_done()
        store.apply(of("r1", *logged("x", [3])))
        assert store.points("r1", "x").values.tolist() == [1, 2, 3]

    def test_what_a_killed_writer_has_applied_is_there(self, store: RunStore, again: Callable[[], RunStore]) -> None:
        begin(store)
        read, write = os.pipe()

        def work() -> None:
            with again() as other:
                for step in range(1000):
                    other.apply(of("r1", *logged("x", [step, step]), *logged("y", [step])))
                    os.write(write, b"!")

        with ForkedProcess(work) as process:
            applied = 0
            while applied < 20:
                applied += len(os.read(read, 100))
            process.kill()
            os.set_blocking(read, False)
            os.close(write)
            applied += len(os.read(read, 2000))
        os.close(read)
        num = len(store.points("r1", "y"))
        assert applied <= num <= applied + 1
        assert len(store.points("r1", "x")) == 2 * num  # a batch is there as a whole

    def test_two_processes_write_at_once_and_see_each_other(
        self, store: RunStore, again: Callable[[], RunStore]
    ) -> None:
        def work(name: str) -> None:
            with again() as other:
                for number in range(10):
                    run = f"{name}-{number}"
                    begin(other, run, *logged("x", [1, 2, 3]))
                    other.apply(of(run, *logged("x", [4]), StateIs("done", NOW)))

        with ForkedProcess(lambda: work("a")) as first, ForkedProcess(lambda: work("b")) as second:
            work("c")
            for process in (first, second):
                process.wait_until_done()
        runs = store.runs(states=["done"])
        assert len(runs) == 30
        assert all(len(store.points(run.id, "x")) == 4 for run in runs[::5])

    def test_threads_read_while_another_one_writes(self, store: RunStore) -> None:
        begin(store)
        seen: list[list[int]] = [[], []]
        is_over = threading.Event()

        def look(lengths: list[int]) -> None:
            while not is_over.is_set():
                lengths.append(len(store.points("r1", "x")))

        threads = [threading.Thread(target=look, args=[lengths]) for lengths in seen]
        for thread in threads:
            thread.start()
        for step in range(30):
            store.apply(of("r1", *logged("x", [step])))
        is_over.set()
        for thread in threads:
            thread.join()
        assert all(lengths == sorted(lengths) for lengths in seen)


class StoreSuite(Runs, Records, MetricsInBlocks, Requests, LongNames, Removal, Processes):
    """All of it; the fixture `again` opens the store once more."""
