"""`Run`: what a script, a trial or a node writes about itself.

    with rw.track(project="digits", config={"lr": 0.1}) as run:
        for step in run.steps(1000):
            loss = train_step(model, run.config["lr"])
            run.log(loss=loss)
            run.checkpoint(lambda: {"model": model, "optimizer": optimizer})

A run is a facade: each method makes records and puts them into a `RecordSink`; nothing waits for a disk, except
checkpoints, artifacts and images, which are files in the folder of the run.
"""

from __future__ import annotations

import logging
import reprlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ropewalk.html_table import html_box, html_headline, html_table
from ropewalk.misplaced_options import tells_names
from ropewalk.tracking.artifacts import keep_file, keep_files
from ropewalk.tracking.checkpoints import CheckpointPolicy, Restored, shown_step
from ropewalk.tracking.conversion import NO_NAMES, LoggedNames, numbers_of, to_number
from ropewalk.tracking.images import image_file
from ropewalk.tracking.interruptions import (
    PAUSE,
    STOP,
    RunInterrupted,
    RunPaused,
    RunStopped,
    RunTerminated,
    outcome_of,
)
from ropewalk.tracking.records import (
    DONE,
    TRAINING,
    AttemptResumed,
    ConfigIs,
    LabelsAre,
    Metrics,
    NoteAdded,
    Record,
    RecordSink,
)
from ropewalk.tracking.run_checkpoints import RunCheckpoints, UnkeptFiles
from ropewalk.tracking.run_clock import RunClock
from ropewalk.tracking.run_config import RunConfig
from ropewalk.tracking.run_identity import RunIdentity
from ropewalk.tracking.tracker_names import METHODS

_log = logging.getLogger(__name__)
_FLUSH_S = 10.0


@tells_names(METHODS)
class Run:
    """A run, as the code that does its work sees it. `rw.track` makes one; `tracking.current_run` returns it anywhere.

    All methods may be called by any thread, except for `steps`, `checkpoint` and `restore`, which belong to the loop.

    Args:
        identity: what the run is.
        config: hyperparameters and other settings.
        sink: takes its records.
        checkpoints: which checkpoints are written and kept.
        asked: returns what is asked of the run now: "pause", "stop", or "" for nothing. `steps` calls it.
        pause_at: the budget: the step at which the run pauses by itself, having written a checkpoint; None: none.
        ended: called once, with state and cause, when the run ends; it writes them.
    """

    def __init__(
        self,
        identity: RunIdentity,
        config: Mapping[str, Any],
        sink: RecordSink,
        *,
        checkpoints: CheckpointPolicy | None = None,
        asked: Callable[[], str] = str,
        pause_at: float | None = None,
        ended: Callable[[str, str], None] | None = None,
    ) -> None:
        self._identity, self._sink, self._id = identity, sink, identity.id
        self._put_record = sink.put
        self._clock = RunClock()
        self.config: RunConfig = RunConfig(config, lambda values: self._put(ConfigIs(values)))
        """Hyperparameters and other settings, read like a dictionary; `config.update` adds and replaces."""
        self._checkpoints = RunCheckpoints(identity, checkpoints or CheckpointPolicy(), self._put, self._warn_once)
        self._scores = self._checkpoints.policy.best is not None
        self._asked, self._pause_at, self._ended = asked, pause_at, ended
        self._step: float | None = None  # of `steps`
        self._total: float | None = None
        self._is_looping = False
        self._counted: dict[str, int] = {}  # logs without a step, by group
        self._names: dict[str, LoggedNames] = {}  # those that were logged last, by group
        self._restored_step = 0.0
        self._warned: set[str] = set()
        self._unkept_images = UnkeptFiles(self.name, self._put)
        self.interrupted: RunInterrupted | None = None
        """The exception with which `steps` ended the run; None if it did not."""
        self._finishing = threading.Lock()
        self._is_finished = False

    @property
    def id(self) -> str:
        """Its id, which no other run of any store has."""
        return self._id

    @property
    def name(self) -> str:
        """Its name, for people."""
        return self._identity.name

    @property
    def project(self) -> str:
        """The project that it belongs to."""
        return self._identity.project

    @property
    def folder(self) -> Path:
        """Folder of its checkpoints, artifacts and images; other files may be put there too."""
        return self._identity.folder

    @property
    def attempt(self) -> int:
        """Number of the process that works on it, from 1 on: 2 after it was continued for the first time."""
        return self._identity.attempt

    @property
    def seed(self) -> int | None:
        """The seed that it was given."""
        return self._identity.seed

    @property
    def step(self) -> float:
        """The step of `steps`; 0 before the first one."""
        return self._step or 0

    @property
    def is_looping(self) -> bool:
        """Whether a loop over `steps` is under way, which obeys requests."""
        return self._is_looping

    # --- what it measures ---------------------------------------------------------------------------------------------

    def log(
        self,
        values: Mapping[str, Any] | None = None,
        /,
        *,
        step: float | None = None,
        group: str = TRAINING,
        **named: Any,
    ) -> None:
        """Log numbers of one moment.

        Args:
            values: numbers by name; nested mappings get names such as "loss/policy". A number is a float, an int, a
                scalar of numpy, or a tensor of one element, which is read now: on a GPU that waits for its computation.
            step: the step, epoch or time that they belong to. None: the step of `steps`, or, outside of it, a counter.
            group: "" for training, "validation", or any other name.
            **named: further numbers.

        Raises:
            TypeError: a value is not one number, or `values` is not a mapping.
        """
        if values is None:
            given: Mapping[str, Any] = named
        elif isinstance(values, Mapping):
            given = {**values, **named} if named else values
        else:
            raise TypeError(
                f"log takes numbers by name, as log({{'loss': 0.5}}) or log(loss=0.5), not {reprlib.repr(values)}"
            )
        logged, numbers = numbers_of(given, self._names.get(group, NO_NAMES))
        self._names[group] = logged
        if step is None:
            step = self._step
            if step is None:
                step = self._counted[group] = self._counted.get(group, int(self._restored_step)) + 1
        elif type(step) is not int and type(step) is not float:
            step = to_number(step, "step")
        metrics = Metrics(group, logged.names, numbers, step, self._clock())
        self._put_record(self._id, metrics)
        if self._scores:
            self._checkpoints.see(metrics)

    def note(self, text: str) -> None:
        """Add a remark."""
        self._put(NoteAdded(str(text), time.time()))

    def label(self, *labels: str, remove: tuple[str, ...] = ()) -> None:
        """Add labels, by which runs are found; or remove some."""
        self._put(LabelsAre(list(map(str, labels)), list(map(str, remove))))

    # --- files --------------------------------------------------------------------------------------------------------

    def artifact(
        self, path: Path | str, name: str | None = None, *, step: float | None = None, copy: bool = True
    ) -> None:
        """Keep a file, or all files of a folder, in the folder of the run.

        A full disk is not an error: training goes on, and a warning says that the file was not kept.

        Args:
            path: the file or folder.
            name: its name in the run, which may contain "/"; None: that of the file.
            step: the step that it belongs to, if to any.
            copy: False leaves it where it is and keeps only its path and digest.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the name would lead out of the folder of the run.
        """
        for record in keep_files(
            Path(path), name, self.folder / "artifacts", step=step, copy=copy, failed=self._not_kept
        ):
            self._put(record)

    def image(self, name: str, image: Any, *, step: float | None = None) -> None:
        """Keep an image.

        Args:
            name: its name; images of one name and different steps are a series.
            image: an array or tensor of shape (height, width) or (height, width, 1, 3 or 4), with bytes, or floats from
                0 to 1, which are clipped; a figure of matplotlib; an image of PIL; or the path of an image file.
            step: the step that it belongs to. None: the step of `steps`.

        Raises:
            TypeError, ValueError: it is none of these, or has whole numbers that are neither bytes nor 0 and 1;
                FileNotFoundError: there is no such file.
        """
        at = self._step if step is None else step
        content, ending = image_file(image, lambda text: self._warn_once(f"image {name}", f"image {name!r} {text}"))
        record = keep_file(content, name, ending, self.folder / "images", step=at, failed=self._unkept_images.tell)
        if record is not None:
            self._put(record)
            self._unkept_images.written(f"images of run {self.name} are kept again")

    # --- the loop -----------------------------------------------------------------------------------------------------

    def steps(self, total: int | None = None, *, start: int | None = None) -> Iterator[int]:
        """Count the steps of a loop, and ask after each whether the run should pause or stop.

        Args:
            total: number of the last step; None counts for ever.
            start: number of the first step; None: 1, or the one after the checkpoint that `restore` returned.

        Yields:
            The number of the step.

        Raises:
            RunPaused: a pause was asked for, or the budget is used, and a checkpoint of this step is written.
            RunStopped: the run was asked to stop.
        """
        step = int(self._restored_step) if start is None else start - 1
        self._total = total
        if start is None and total is not None and 0 < total <= step:
            _log.warning(
                "run.steps(%d) has no step left: the checkpoint that was restored is of step %d. For more, raise the "
                "number of steps; to train from an earlier one, ropewalk runs fork RUN --from STEP",
                total,
                step,
            )
        self._is_looping = True
        try:
            while total is None or step < total:
                step += 1
                self._step = step
                yield step
                if step != total and (end := self._interruption(step)) is not None:
                    self.interrupted = end
                    raise end
        finally:  # also after a break
            self._is_looping = False

    def checkpoint(self, state: Any, *, step: float | None = None, score: float | None = None) -> bool:
        """Write a checkpoint, if the policy says so, if a pause is due, or if this is the last step.

        A full disk is not an error: training goes on, and a warning says that this checkpoint was not written.

        Args:
            state: what is needed to resume: a tree of tensors, arrays, numbers, strings, None, lists, tuples and
                dictionaries; objects with a `state_dict` are saved by it. Or a function without arguments that returns
                one, which is called only if a checkpoint is written.
            step: the step after which it was taken. None: the step of `steps`.
            score: value of the metric by which the best checkpoint is found. None: the one that was logged last.

        Returns:
            Whether it was written.

        Raises:
            TypeError: the state holds something that a checkpoint cannot hold; names its place.
            ValueError: there is no step, because `steps` is not used and none was given.
        """
        at = self._step if step is None else step
        if at is None:
            raise ValueError(
                "run.checkpoint needs a step, because run.steps is not used here: run.checkpoint(state, step=n)"
            )
        if not (self._checkpoints.policy.is_due(at) or at == self._total or self._is_pause_due(at)):
            return False
        if callable(state) and not hasattr(state, "state_dict"):
            state = state()
        return self._checkpoints.write(at, state, score)

    def restore(self, step: float | None = None) -> Restored | None:
        """Return the newest intact checkpoint, of this run or of the one from which it was forked.

        `steps` continues after it.

        Args:
            step: the checkpoint of this step, and no other.

        Returns:
            The checkpoint, or None if there is none: the run begins.

        Raises:
            CheckpointCorrupt: there are checkpoints, and all of them are damaged.
            LookupError: there is none of that step; lists those that there are.
        """
        found = self._checkpoints.restore(step)
        self._restored_step = found.step if found is not None else 0.0
        return found

    def checkpoint_step(self) -> float:
        """Return the step of the newest checkpoint that this process wrote or restored; 0 if there is none."""
        return self._checkpoints.newest_step

    # --- its end ------------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float = _FLUSH_S) -> bool:
        """Wait until everything so far is stored.

        Args:
            timeout_s: seconds.

        Returns:
            Whether it is.
        """
        return self._sink.flush(timeout_s)

    def finish(self, state: str = DONE, why: str = "") -> None:
        """End the run; may be called twice. The end of `with` calls it.

        Args:
            state: "done", "failed", "stopped" or "paused".
            why: the cause, if the state alone does not explain it.
        """
        with self._finishing:
            if self._is_finished:
                return
            self._is_finished = True
        if self._ended is not None:
            self._ended(state, why)
        else:
            self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish(*outcome_of(error))

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.name!r} of project {self.project!r}>"

    def _repr_html_(self) -> str:
        facts = [("run", self.id), ("of", self.project), ("step", f"{self.step:g}"), ("attempt", str(self.attempt))]
        settings = [(name, str(value)) for name, value in self.config.items()]
        state = "done" if self._is_finished else "running"
        table = html_table(("setting", "value"), settings) if settings else ""
        return html_box(html_headline(self.name, state, facts), table)

    # --- inside -------------------------------------------------------------------------------------------------------

    def put(self, record: Record) -> None:
        """Write a record of this run, for what observes something and writes it here."""
        self._put(record)

    def resumed_from(self, step: float) -> None:
        """Write from which step this attempt goes on, for what has loaded a checkpoint of its own."""
        self._put(AttemptResumed(self.attempt, step))

    def _put(self, record: Record) -> None:
        self._put_record(self._id, record)

    def _is_pause_due(self, step: float) -> bool:
        return (self._pause_at is not None and step >= self._pause_at) or self._asked() == PAUSE

    def _interruption(self, step: float) -> RunInterrupted | None:
        """Return what ends the loop after this step, which is complete; None if it goes on."""
        asked = self._asked()
        if asked == STOP:
            return RunStopped(f"stopped by request after step {shown_step(step)}", step)
        is_over = self._pause_at is not None and step >= self._pause_at
        if self._checkpoints.newest_step == step and (is_over or asked == PAUSE):
            return RunPaused(f"paused at step {shown_step(step)}", step, step)
        if not is_over:  # a pause that was asked for waits until there is a checkpoint
            return None
        saved = shown_step(self._checkpoints.newest_step)
        self._warn_once(
            "no checkpoint",
            f"run {self.name} pauses at step {shown_step(step)} without a checkpoint of this step, so that it goes on "
            f"after step {saved}; call run.checkpoint(state) in each step: it writes nothing unless it is needed",
        )
        return RunPaused(
            f"paused at step {shown_step(step)} without a checkpoint of it", step, self._checkpoints.newest_step
        )

    def _not_kept(self, what: str, error: OSError) -> None:
        UnkeptFiles(self.name, self._put).tell(what, error)

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            _log.warning("%s", text)


__all__ = ["Run", "RunIdentity", "RunInterrupted", "RunPaused", "RunStopped", "RunTerminated"]
