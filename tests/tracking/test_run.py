"""What a run puts into its sink, and what its loop does."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ropewalk.tracking import artifacts, checkpoints
from ropewalk.tracking.checkpoints import CheckpointPolicy
from ropewalk.tracking.records import (
    ArtifactKept,
    CheckpointKept,
    CheckpointRemoved,
    ConfigIs,
    EventHappened,
    LabelsAre,
    Metrics,
    NoteAdded,
)
from ropewalk.tracking.run import Run, RunPaused, RunStopped
from tests.tracking.recorded import Recorded, make_run


@pytest.fixture
def sink() -> Recorded:
    return Recorded()


def logged(sink: Recorded) -> list[tuple[str, float, dict[str, float]]]:
    return [(one.group, one.step, dict(zip(one.names, one.values, strict=True))) for one in sink.of(Metrics)]


class Asked:
    """What is asked of a run after some steps."""

    def __init__(self) -> None:
        self.now = ""

    def __call__(self) -> str:
        return self.now


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_numbers_are_logged_by_mapping_and_by_keyword(tmp_path: Path, sink: Recorded) -> None:
    run = make_run(tmp_path, sink)
    run.log({"loss": torch.tensor(0.5), "by": {"class": np.float32(2)}}, step=3)
    run.log(accuracy=1, step=0.5, group="validation")
    run.log(loss=1.0, step=torch.tensor(4))  # type: ignore[arg-type]
    assert logged(sink) == [
        ("", 3, {"loss": 0.5, "by/class": 2.0}),
        ("validation", 0.5, {"accuracy": 1.0}),
        ("", 4, {"loss": 1.0}),
    ]
    assert type(sink.of(Metrics)[-1].step) is float


@pytest.mark.parametrize("values", [5, 0, 0.0, [0.5], "loss"])
def test_what_has_no_names_is_not_logged(values: Any, tmp_path: Path, sink: Recorded) -> None:
    """0 was taken for no numbers at all, without a word."""
    run = make_run(tmp_path, sink)
    with pytest.raises(TypeError, match=re.escape(f"log(loss=0.5), not {values!r}")):
        run.log(values)


def test_a_tensor_that_changes_later_was_logged_as_it_was(tmp_path: Path, sink: Recorded) -> None:
    run, loss = make_run(tmp_path, sink), torch.tensor(1.0)
    run.log(loss=loss)
    loss.add_(1)
    assert logged(sink) == [("", 1, {"loss": 1.0})]


def test_a_clock_that_is_set_back_puts_nothing_before_what_came_earlier(
    tmp_path: Path, sink: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last value of a metric was that before a time server had set the clock, and curves ended in their middle.
    run, real, began = make_run(tmp_path, sink), time.time, time.time()
    run.log(loss=1.0)
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    run.log(loss=0.5)
    before, after = (one.time for one in sink.of(Metrics))
    assert began - 1 < before <= after, "the first is a time of the day"


def test_the_step_is_that_of_steps_or_a_counter_of_the_group(tmp_path: Path, sink: Recorded) -> None:
    run = make_run(tmp_path, sink)
    run.log(a=1)
    run.log(a=1, group="validation")
    run.log(a=1)
    for _ in run.steps(1):
        run.log(a=1)
    assert [(group, step) for group, step, _ in logged(sink)] == [("", 1), ("validation", 1), ("", 2), ("", 1)]


def test_settings_notes_and_labels_are_recorded(tmp_path: Path, sink: Recorded) -> None:
    run = make_run(tmp_path, sink, config={"lr": 0.1})
    run.config.update(lr=0.2)
    run.note("a remark")
    run.label("good", "fast", remove=("new",))
    assert run.config["lr"] == 0.2
    assert sink.of(ConfigIs) == [ConfigIs({"lr": 0.2})]
    assert [one.text for one in sink.of(NoteAdded)] == ["a remark"]
    assert sink.of(LabelsAre) == [LabelsAre(["good", "fast"], ["new"])]


def test_a_notebook_shows_a_run_and_its_settings_as_text(tmp_path: Path) -> None:
    run = make_run(tmp_path, Recorded())
    run.config.update({"lr": 0.1, "<script>": "<b>\x1b[2J"})
    shown = run._repr_html_()
    assert run.id in shown and "0.1" in shown and "&lt;script&gt;" in shown
    assert "<script" not in shown and "<b>" not in shown and "\x1b" not in shown


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_and_folders_are_copied_with_their_digests(tmp_path: Path, sink: Recorded) -> None:
    run = make_run(tmp_path / "run", sink)
    data = tmp_path / "data"
    (data / "sub").mkdir(parents=True)
    (data / "a.txt").write_text("a")
    (data / "sub" / "b.csv").write_text("b")
    (data / "link").symlink_to("/etc/passwd")
    run.artifact(data / "a.txt", "inputs/first.txt", step=2)
    run.artifact(data)
    run.artifact(data / "a.txt", "there", copy=False)
    kept = {one.name: one for one in sink.of(ArtifactKept)}
    assert sorted(kept) == ["data/a.txt", "data/sub/b.csv", "inputs/first.txt", "there"]
    first = kept["inputs/first.txt"]
    assert (Path(first.path).read_text(), first.size_bytes, first.step, first.media_type) == ("a", 1, 2, "text/plain")
    assert first.sha256 == kept["there"].sha256 == "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
    assert kept["there"].path == str(data / "a.txt")


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").write_text("a")
    with pytest.raises(ValueError, match="not a name for a file in a run"):
        make_run(tmp_path / "run").artifact(tmp_path / "a", name)


def test_images_of_one_name_are_a_series(tmp_path: Path, sink: Recorded) -> None:
    run = make_run(tmp_path, sink)
    for _ in run.steps(2):
        run.image("samples/grid", np.zeros((2, 3)))
    assert [(one.name, one.step, one.kind, one.media_type) for one in sink.of(ArtifactKept)] == [
        ("samples/grid", 1, "image", "image/png"),
        ("samples/grid", 2, "image", "image/png"),
    ]
    assert all(Path(one.path).read_bytes().startswith(b"\x89PNG") for one in sink.of(ArtifactKept))


def test_an_image_that_would_be_all_white_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = make_run(tmp_path)
    run.image("overshoot", np.array([[-0.1, 1.2]]))
    assert not caplog.messages
    for _ in range(2):
        run.image("photo", np.array([[0.0, 255.0]]))
    assert caplog.messages == [
        "image 'photo' has numbers from 0 to 255; those below 0 are black, and those above 1 white"
    ]


def test_a_file_that_cannot_be_kept_does_not_end_the_training(
    tmp_path: Path, sink: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "artifacts").write_text("a file where a folder is to be")
    run = make_run(tmp_path, sink)
    run.artifact(__file__)
    assert sink.of(ArtifactKept) == []
    assert [one.kind for one in sink.of(EventHappened)] == ["file not kept"]
    assert "artifact test_run.py of run first was not kept" in caplog.text


# --- the loop ---------------------------------------------------------------------------------------------------------


def test_checkpoints_are_written_and_removed_as_the_policy_says(tmp_path: Path, sink: Recorded) -> None:
    run = make_run(tmp_path, sink, checkpoints=CheckpointPolicy(every=2, keep=1, best="accuracy"))
    for step in run.steps(7):
        run.log(accuracy=[0.1, 0.2, 0.3, 0.9, 0.5, 0.6, 0.7][step - 1])
        written = run.checkpoint(lambda: {"step": run.step})
        assert written == (step in (2, 4, 6, 7))
    assert [(one.step, one.score) for one in sink.of(CheckpointKept)] == [(2, 0.2), (4, 0.9), (6, 0.6), (7, 0.7)]
    assert [one.step for one in sink.of(CheckpointRemoved)] == [2, 6]
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step-4", "step-7"]


def test_the_best_checkpoint_is_found_by_the_metric_of_its_own_group(tmp_path: Path, sink: Recorded) -> None:
    """The loss of whichever group came last decided: a search was told of the validation loss as of its metric."""
    run = make_run(tmp_path, sink, checkpoints=CheckpointPolicy(best="loss", mode="min"))
    other = make_run(tmp_path / "other", sink, checkpoints=CheckpointPolicy(best="validation/loss", mode="min"))
    for each in (run, other):
        each.log({"loss": 0.5})
        each.log({"loss": 0.1}, group="validation")
        each.checkpoint({}, step=1)
    assert [one.score for one in sink.of(CheckpointKept)] == [0.5, 0.1]


def test_a_state_is_only_taken_if_it_is_written(tmp_path: Path) -> None:
    run = make_run(tmp_path, checkpoints=CheckpointPolicy(every=100))

    def state() -> dict[str, int]:
        raise AssertionError("nobody needs it")

    for _ in zip(run.steps(), range(99), strict=False):
        assert not run.checkpoint(state)


def test_a_run_goes_on_after_its_checkpoint(tmp_path: Path, sink: Recorded) -> None:
    first = make_run(tmp_path)
    for step in first.steps(3):
        first.checkpoint({"n": step})
    again = make_run(tmp_path, sink, attempt=2)
    found = again.restore()
    assert found is not None and found.state == {"n": 3}
    assert list(again.steps(5)) == [4, 5]
    assert [one.text for one in sink.of(EventHappened)] == ["continues after step 3"]


def test_a_fork_begins_with_the_checkpoint_of_another_run(tmp_path: Path) -> None:
    parent = make_run(tmp_path / "parent", checkpoints=CheckpointPolicy(keep=None))
    for step in parent.steps(3):
        parent.checkpoint({"n": step})

    def fork(at: float | None = None) -> Run:
        return make_run(tmp_path / "fork", forked_from=tmp_path / "parent", forked_at=at)

    assert [found.step for found in (fork().restore(), fork(2).restore(), fork().restore(1)) if found] == [3, 2, 1]
    run = fork(2)
    run.restore()
    for step in run.steps(4):
        run.checkpoint({"n": 10 * step})
    found = fork(2).restore()
    assert found is not None and found.state == {"n": 40}, "its own come first"


def test_a_run_without_a_checkpoint_begins(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert run.restore() is None
    assert next(run.steps(3)) == 1
    assert list(run.steps(5, start=4)) == [4, 5]


def test_a_checkpoint_without_a_step_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with pytest.raises(ValueError, match=r"run.checkpoint\(state, step=n\)"):
        run.checkpoint({})
    assert run.checkpoint({}, step=4)


def steps_until_the_end(run: Run, *, saving: bool = True) -> Iterator[float]:
    for step in run.steps(10):
        yield step
        if saving:
            run.checkpoint({"n": step})


def test_a_pause_waits_for_a_checkpoint_of_its_step(tmp_path: Path) -> None:
    asked = Asked()
    run = make_run(tmp_path, checkpoints=CheckpointPolicy(every=1000), asked=asked)
    done: list[float] = []

    def train() -> None:
        for step in steps_until_the_end(run):
            done.append(step)
            asked.now = "pause" if step == 3 else ""

    with pytest.raises(RunPaused, match="paused at step 3") as paused:
        train()
    assert done == [1, 2, 3] and (paused.value.step, paused.value.checkpoint_step) == (3, 3)
    again = make_run(tmp_path, attempt=2)
    assert again.restore() and next(again.steps(10)) == 4


def test_a_pause_loses_nothing_of_a_run_that_writes_no_checkpoint(tmp_path: Path) -> None:
    asked = Asked()
    asked.now = "pause"
    assert len(list(steps_until_the_end(make_run(tmp_path, asked=asked), saving=False))) == 10


def test_a_stop_ends_the_loop_after_the_step(tmp_path: Path) -> None:
    asked = Asked()
    run = make_run(tmp_path, asked=asked)
    done: list[float] = []

    def train() -> None:
        for step in steps_until_the_end(run, saving=False):
            done.append(step)
            asked.now = "stop" if step == 2 else ""

    with pytest.raises(RunStopped, match="stopped by request after step 2"):
        train()
    assert done == [1, 2]


def test_a_budget_pauses_with_a_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = make_run(tmp_path, checkpoints=CheckpointPolicy(every=1000), pause_at=4)
    with pytest.raises(RunPaused) as paused:
        list(steps_until_the_end(run))
    assert paused.value.checkpoint_step == paused.value.step == 4 and caplog.text == ""


def test_a_budget_pauses_without_a_checkpoint_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RunPaused) as paused:
        list(steps_until_the_end(make_run(tmp_path, pause_at=4), saving=False))
    assert (paused.value.step, paused.value.checkpoint_step) == (4, 0)
    assert "pauses at step 4 without a checkpoint of this step, so that it goes on after step 0" in caplog.text


def test_a_budget_that_ends_with_the_loop_is_no_pause(tmp_path: Path) -> None:
    assert len(list(steps_until_the_end(make_run(tmp_path, pause_at=10)))) == 10


def test_training_goes_on_when_a_checkpoint_cannot_be_written(
    tmp_path: Path, sink: Recorded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run = make_run(tmp_path, sink)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_new_file", full)
        for step in range(1, 4):
            assert run.checkpoint({"n": step}, step=step) is False
    assert sink.of(CheckpointKept) == [] and len(sink.of(EventHappened)) == 3
    assert run.checkpoint({"n": 4}, step=4) and run.checkpoint({"n": 5}, step=5)
    assert [record.getMessage() for record in caplog.records] == [
        "the checkpoint of step 1 of run first was not kept: [Errno 28] No space left on device",
        "checkpoints of run first are written again, at step 4",
    ]


def test_a_series_of_images_on_a_full_disk_is_warned_of_once(
    tmp_path: Path, sink: Recorded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run = make_run(tmp_path, sink)
    with monkeypatch.context() as patch:
        patch.setattr(artifacts, "make_folder", full)
        for step in range(1, 4):
            run.image("square", np.ones((2, 2)), step=step)
    assert sink.of(ArtifactKept) == [] and len(sink.of(EventHappened)) == 3
    run.image("square", np.ones((2, 2)), step=4)
    run.image("square", np.ones((2, 2)), step=5)
    assert [record.getMessage() for record in caplog.records] == [
        "image square of run first was not kept: [Errno 28] No space left on device",
        "images of run first are kept again",
    ]


def test_a_missing_score_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = make_run(tmp_path, checkpoints=CheckpointPolicy(best="validation/accuracy"))
    for _ in run.steps(2):
        run.checkpoint({})
    assert caplog.text.count("'validation/accuracy', which was not logged before") == 1
    run.log(accuracy=0.5, group="validation")
    run.checkpoint({}, step=3)
    assert run.restore() is not None


# --- its end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "state"), [(None, "done"), (ValueError("x"), "failed"), (RunStopped("x"), "stopped")]
)
def test_the_end_of_with_tells_once_how_it_ended(tmp_path: Path, error: BaseException | None, state: str) -> None:
    ends: list[tuple[str, str]] = []
    run = make_run(tmp_path, ended=lambda state, why: ends.append((state, why)))
    with contextlib.suppress(ValueError, RunStopped), run:
        if error is not None:
            raise error
    run.finish()
    assert [one for one, _ in ends] == [state]
