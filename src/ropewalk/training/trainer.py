"""`Trainer`: trains a model as a plan says, on real processes.

    trainer = ropewalk.Trainer(model, loss_fn, lambda p: torch.optim.Adam(p, 1e-3), plan=2, micro_batches=8)
    with trainer:
        for x, y in loader:
            trainer.step(x, y)
        model = trainer.to_module()

The trainer does not decide how anything is computed. `training_setup` makes a run of what the arguments describe: one
on processes (`process_run`), or one in this thread (`inline_run`).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from torch import nn

from ropewalk.argument_kinds import check_callable, check_kind, check_number
from ropewalk.control.view import View
from ropewalk.errors import LocalExecutorFailed, NotTraceable, PlanInvalid, TrainerFailed
from ropewalk.exchange.exchange_maker import MakesExchange
from ropewalk.misplaced_options import tells_names, tells_places
from ropewalk.pipeline import local_executor
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.stages.losses import Loss
from ropewalk.pipeline.stages.optimizer_maker import OptimizerMaker, StageOptimizer
from ropewalk.pipeline.stages.randomness import seed_of_run
from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.pipeline.tracing.filling import filled
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.tracking.observed_run import Track
from ropewalk.training.checkpoint_future import CheckpointFuture
from ropewalk.training.measured import MeasuredTimeline, measured_timeline
from ropewalk.training.observing import TrainingObserver
from ropewalk.training.planned_and_measured import (
    ideal_timeline,
    planned_and_measured_svg,
    planned_and_measured_trace,
)
from ropewalk.training.preparing import Model
from ropewalk.training.progress import ProgressLine
from ropewalk.training.recorder import WorkerRecord
from ropewalk.training.replica_groups import check_exchange, keeps_state
from ropewalk.training.report import TrainingReport
from ropewalk.training.run import TrainingRun
from ropewalk.training.step_handle import StepHandle
from ropewalk.training.step_watch import StepWatch
from ropewalk.training.target import TrainerTarget
from ropewalk.training.timeouts import TrainerTimeouts
from ropewalk.training.trainer_html import trainer_html
from ropewalk.training.trainer_options import ProcessOptions, Progress, Snapshots, Sources
from ropewalk.training.training_setup import TrainingSetup
from ropewalk.user_frames import user_frames_only

logger = logging.getLogger(__name__)

_OTHER_NAMES: dict[str, type[Any] | Sequence[str]] = {
    "options=ropewalk.pipeline.TrainingOptions(autocast=torch.bfloat16), the one lower precision; it needs no scaler": (
        "precision",
        "mixed_precision",
        "bf16",
        "fp16",
        "amp",
        "scaler",
        "grad_scaler",
    ),
    "options=ropewalk.pipeline.TrainingOptions(clip_norm=...)": ("gradient_clip_val", "max_grad_norm"),
    "options=ropewalk.pipeline.TrainingOptions(accumulate=...)": (
        "gradient_accumulation_steps",
        "accumulate_grad_batches",
    ),
    "plan=, a number of processes or a plan of ropewalk.pipeline.plan": ("devices", "num_processes"),
    "optimizer=ropewalk.pipeline.OptimizerMaker(..., lr_schedule=...)": ("scheduler", "lr_scheduler"),
    "a loop: for x, y in loader: trainer.step(x, y)": (
        "max_epochs",
        "max_steps",
        "epochs",
        "train_dataset",
        "train_dataloader",
        "callbacks",
    ),
    "track=True": ("logger",),
    'processes=ropewalk.training.ProcessOptions(device="cuda")': ("accelerator",),
    "model=": ("network", "net", "module"),
    "loss_fn=": ("criterion", "compute_loss"),
    "optimizer=, a function that makes the optimizer of a stage from its parameters": ("optimizers", "optim"),
    "a loop that calls trainer.evaluate(batches)": ("eval_dataset", "val_dataloaders"),
    'trainer.save("folder") in the loop, and trainer.load("folder")': ("default_root_dir", "output_dir"),
}
"""Arguments of Accelerate, PyTorch Lightning and transformers, and where docs/coming-from says that they are here."""
_METHODS = {
    "a loop: for x, y in loader: trainer.step(x, y)": ("fit", "train", "run"),
    "trainer.step(x, y), which runs forward, backward and the optimizer": (
        "backward",
        "forward",
        "zero_grad",
        "training_step",
        "train_step",
    ),
    "trainer.evaluate(batches), the loss, or trainer.predict(x), the outputs": ("validate", "test", "eval"),
    "trainer.to_module(), a copy with the newest weights": ("model", "module", "network", "parameters", "unwrap_model"),
    "trainer.state_dict(), whose 'options' have the rates and whose 'optimizer' has the states, by parameter": (
        "optimizer",
        "optimizers",
        "lr",
        "scheduler",
        "get_last_lr",
    ),
    "trainer.save(folder)": ("save_model", "save_state", "save_checkpoint"),
    "trainer.load(folder)": ("load_state", "load_checkpoint", "resume"),
    "track=True, and ropewalk.track() for numbers of your own": ("log", "log_metrics"),
}
"""Methods of other trainers, of models and of optimizers, and what is written here."""
_PLACES = {
    **_OTHER_NAMES,
    **local_executor.PLACES,
    "sources=ropewalk.training.Sources({}=...)": Sources,
    "progress=ropewalk.training.Progress({}=...)": Progress,
    "processes=ropewalk.training.ProcessOptions({}=...)": ProcessOptions,
    "processes=ProcessOptions(snapshots=Snapshots({}=...)), both from ropewalk.training": Snapshots,
    "processes=ProcessOptions(timeouts=TrainerTimeouts({}=...)), both from ropewalk.training": TrainerTimeouts,
}
"""Where the options of a trainer are written, for those that are given to the trainer itself."""


@tells_names(_METHODS)
class Trainer:
    """Trains a model as a plan says, with one process for each worker of the plan.

    Entering the `with` block starts the processes; if the model has to be traced or profiled with data, the first step
    starts them instead. Leaving the block finishes the admitted steps and ends the processes (after an exception,
    immediately). The given model is never changed; `to_module` returns a trained copy.

    A process that dies is replaced, and training continues from a snapshot that another process holds, with the weights
    it would have had without the failure (docs/theory.md, "Recovery"). A stage that has other replicas continues with
    those.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import ropewalk as rw
        >>> model, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(16, 4)
        >>> with rw.Trainer(
        ...     model, nn.MSELoss(), lambda p: torch.optim.Adam(p, 0.05), plan=2, micro_batches=4, inline=True
        ... ) as trainer:  # without `inline`, as two processes
        ...     steps = [trainer.step(x, x.sum(1, keepdim=True)) for _ in range(20)]
        ...     trained = trainer.to_module()
        >>> bool(steps[-1].metrics().loss < steps[0].metrics().loss)
        True

    Args:
        model: a module in train mode; or its graph, from `ropewalk.pipeline.trace`; or a function without arguments
            that builds the module: then no process, this one included, ever holds more of it than its own stages.
        loss_fn: called with the model's outputs and the labels of a micro-batch; runs in the last stage, and returns
            the mean over the samples; `ropewalk.pipeline.Loss` is for a function that returns the sum, or a total and
            its weight.
        optimizer: builds the optimizer of a stage from its parameters, `lambda params: torch.optim.Adam(params, 1e-3)`;
            a function with an argument called `named_parameters` gets pairs of name and parameter, for groups. A
            `ropewalk.pipeline.OptimizerMaker` has a schedule of the learning rate besides.
        plan: a plan from `ropewalk.pipeline.plan`; or the number of devices: the model is then profiled with the first
            micro-batch, and planned for that many processes of this kind, as stages, replicas or both, whichever is
            fastest and fits into the memory given in `ProcessOptions(resources=)`, or else into each process's share of
            this machine's memory. None: one process.
        schedule: a name or an object; None: the plan's. With a number of devices, there are as many stages as the
            schedule makes for them.
        micro_batches: the number per step; None: the plan's, and with a number of devices four for each, or fewer for a
            model with batch normalisations, each of which gets at least two samples.
        example_inputs: the model's inputs, as a tuple, so that all processes can start before the first step.
        exchange: how the gradients of a stage's replicas are averaged: a function that makes the exchange of one
            replica, as in `functools.partial(AllGather, GDSEC(c=100))`, a compressor, or its name ("none", "gd_sec").
            None: every replica sends its sums to the others, and all add them in the same order; with more than two
            replicas "none" sends less, round a ring.
        options: clipping of gradients, NaN, autocast and accumulation; see `ropewalk.pipeline.TrainingOptions`.
        inline: train in this thread, without processes, for debugging. The numbers are the same.
        seed: determines all random numbers of the run.
        sources: mini-batches and initial weights that processes read by themselves; see `Sources`. None: both come from
            this process.
        processes: where the processes run, their devices, resources, snapshots and timeouts; see `ProcessOptions`.
        progress: True prints a line each second: step, loss, rates; `Progress` also says how many steps there will be.
        track: True, or the name of a project: the plan, losses, deaths, checkpoints, the last report and the end are
            kept as a run: the current run of this process, or a new one; see `ropewalk.tracking`.
    """

    @user_frames_only
    @tells_places(_PLACES)
    def __init__(
        self,
        model: Model,
        loss_fn: Callable[[Any, Any], Any] | Loss,
        optimizer: StageOptimizer | OptimizerMaker,
        plan: Plan | int | None = None,
        *,
        schedule: str | Schedule | None = None,
        micro_batches: int | None = None,
        example_inputs: Any = None,
        exchange: MakesExchange | None = None,
        options: TrainingOptions | None = None,
        inline: bool = False,
        seed: int = 0,
        sources: Sources | None = None,
        processes: ProcessOptions | None = None,
        progress: bool | Progress = False,
        track: Track = False,
    ) -> None:
        if not isinstance(model, ModelGraph):
            check_callable("model", model, "a module, its graph, or what builds it", required=True)
            _check_builds(model)
        check_kind("schedule", schedule, str | Schedule, '"one_f_one_b", or ropewalk.pipeline.make_schedule(...)')
        check_number("micro_batches", micro_batches, Integral, "a whole number", least=1, error=PlanInvalid)
        if not isinstance(plan, Plan):
            what = "a Plan from ropewalk.pipeline.plan, or a number of devices"
            check_number("plan", plan, int, what, least=1, error=PlanInvalid)
        check_kind("options", options, TrainingOptions, "ropewalk.pipeline.TrainingOptions(clip_norm=1.0)")
        check_kind("sources", sources, Sources, "ropewalk.training.Sources(data=...)")
        check_kind("processes", processes, ProcessOptions, 'ropewalk.training.ProcessOptions(engine="slurm")')
        check_exchange(exchange)
        self._setup = TrainingSetup(
            model=model,
            plan=1 if plan is None else plan,
            schedule=schedule,
            micro_batches=micro_batches,
            example=example_inputs,
            loss=Loss.of(loss_fn),
            optimizers=OptimizerMaker.of(optimizer),
            options=options or TrainingOptions(),
            exchange=exchange,
            inline=inline,
            seed=seed_of_run(seed),
            sources=sources or Sources(),
            processes=processes or ProcessOptions(),
        )
        shown = Progress.of(progress)
        self._run: TrainingRun | None = None
        self._graph: ModelGraph | None = None
        self._observer = TrainingObserver(track)
        line = ProgressLine(total_steps=shown.total_steps) if shown.line else None
        self._steps = StepWatch(self._setup.options, line, self._observer)
        self._target = TrainerTarget(self._setup.processes.name, self._steps.losses, shown.total_steps)
        self._has_ended = False

    @user_frames_only
    def __enter__(self) -> Trainer:
        self._check_open()
        if self._run is None and self._setup.needs_no_step:
            self._begin(self._setup.example)
        return self

    @user_frames_only
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Finish the admitted steps and end all processes; after an exception, end them immediately."""
        if kind is not None:
            self._close(0.5, error)
            return
        try:
            if self._run is not None and not self._has_ended:
                self._run.drain()
                self._look_at_steps(waits=True)
                self._observer.report(self.report, self.num_steps)
        except (LocalExecutorFailed, TrainerFailed) as failure:
            self._close(0.5, failure)  # the failure was reported when it happened
        except BaseException as failure:
            self._close(0.5, failure)
            raise
        else:
            self.close()

    def __repr__(self) -> str:
        state = "before its first step" if self._run is None else f"{self.num_steps} steps"
        return f"<Trainer {self._setup.processes.name!r} {state}>"

    def close(self, grace_s: float | None = None) -> None:
        """End all processes, and the steps that are still under way; may be called twice.

        Args:
            grace_s: seconds until processes that have not ended by themselves are killed; None: the program's.
        """
        self._close(grace_s, None)

    def _close(self, grace_s: float | None, error: BaseException | None) -> None:
        self._has_ended = True
        try:
            if self._run is not None:
                self._look_at_steps()
                self._run.close(grace_s)
        except BaseException as failure:
            error = error or failure
            raise
        finally:
            self._observer.end(error)
            self._target.end(error)

    # --- training -----------------------------------------------------------------------------------------------------

    @property
    def num_steps(self) -> int:
        """The number of admitted steps, those of a loaded state included."""
        return 0 if self._run is None else self._run.num_steps

    @user_frames_only
    def step(self, x: Any = None, y: Any = None) -> StepHandle:
        """Train on one mini-batch; returns once it is handed over, and waits only while too many steps are under way.

        Args:
            x: the model's input: one tensor, a tuple of arguments, or a dictionary of keyword arguments. Omitted if the
                trainer was given `Sources(data=...)`.
            y: labels, any tree of tensors; cut into micro-batches like the inputs.

        Returns:
            A handle that gives the losses of the step once they are known.

        Raises:
            StageFailed: a stage raised, in this step or an earlier one; names the stage and has its traceback.
            StageLost: a process is lost and cannot be replaced, and training cannot go on.
            TrainerFailed: the trainer had failed before.
            ValueError: the mini-batch cannot be cut, the labels do not fit it, or a mini-batch was given although the
                trainer has data of its own.
            TypeError: no mini-batch was given, and the trainer has no data of its own.
            RuntimeError: the trainer was closed.
        """
        self._check_open()
        self._observer.interrupt(self.num_steps)
        if self._setup.sources.data is not None:
            if x is not None or y is not None:
                raise ValueError("this trainer has data in its sources; call step() without x and y")
            run = self._under_way
            number, begun = run.num_steps, run.step_of_own_data()
        elif x is None:
            raise TypeError("step needs a mini-batch: step(x, y); or give the trainer Sources(data=...)")
        else:
            try:
                run = self._run or self._begin(x)
                number, begun = run.num_steps, run.step(x, y)
            except NotTraceable as error:
                if y is None and isinstance(x, tuple | list) and len(cast("list[Any]", x)) == 2:
                    raise _one_pair(error) from None
                raise

        def wait() -> None:
            self._check_open()
            begun.wait()

        handle = StepHandle(number, begun.metrics, wait)
        self._steps.put(handle, begun.metrics, x)
        self._look_at_steps()
        return handle

    def _look_at_steps(self, *, waits: bool = False) -> None:
        """Show and write the steps that are done; `waits`: also if the GPU of an inline trainer is waited for."""
        self._steps.look(self._warn, waits=waits)
        if self._observer.is_on and self._run is not None:
            self._observer.look(self._run.events)

    def _tell_of_exchange(self, why: str) -> None:
        """Say that what the compressor of an exchange had kept back is gone, if it keeps something."""
        if keeps_state(self._setup.exchange):
            self._warn(
                f"the exchange between replicas starts over: {why} what its compressor had kept back, since that "
                f"belongs to one replica of one plan"
            )

    def _warn(self, text: str) -> None:
        """Tell the user something, and whoever looks at the training."""
        logger.warning(text)
        if self._run is not None:
            self._run.events.append(text)
            self._run.history.note("", text)

    @user_frames_only
    def drain(self) -> None:
        """Finish all admitted steps, including the updates of partial rounds."""
        self._under_way.drain()
        self._look_at_steps(waits=True)

    @user_frames_only
    def evaluate(self, batches: Iterable[tuple[Any, Any]]) -> float:
        """Return the loss over mini-batches, in evaluation mode; drains first.

        Args:
            batches: pairs (x, y), each as `step` takes them.

        Returns:
            The mean over all samples, weighted if the losses are; with `Loss(loss_fn, "sum")` the sum.

        Raises:
            ValueError: there are no mini-batches.
        """
        return self._under_way.evaluate(batches)

    @user_frames_only
    def predict(self, x: Any) -> Any:
        """Return the model's output for a mini-batch, in evaluation mode; drains first.

        Args:
            x: the model's input, as `step` takes it.

        Returns:
            The output in the model's own form: tensors of the whole mini-batch.
        """
        return self._under_way.predict(x)

    # --- state and weights --------------------------------------------------------------------------------------------

    @user_frames_only
    def state_dict(self) -> dict[str, Any]:
        """Return all that a trainer with any plan needs to continue from here, by the model's names; drains first."""
        return self._under_way.state_dict()

    @user_frames_only
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state that `state_dict` returned, under any plan; drains first.

        Args:
            state: the result of `state_dict`, from a trainer with any plan.

        Raises:
            ValueError: the state belongs to another model.
        """
        before = self.num_steps
        self._under_way.load_state_dict(state)
        self._tell_of_loading(before, "a state")

    def _tell_of_loading(self, steps_before: int, source: str) -> None:
        if not steps_before:  # a trainer that has trained, and goes back, has not begun there
            self._observer.resumed_from(self.num_steps)
        if self._under_way.has_exchange:
            self._tell_of_exchange(f"{source} has nothing of")

    @user_frames_only
    def save(self, folder: str | Path, *, keep: int | None = 2) -> CheckpointFuture:
        """Write a checkpoint while training goes on; drains first.

        Args:
            folder: the folder of all checkpoints of this training; all processes must be able to reach it.
            keep: the number of checkpoints to keep, the newest ones; None: all.

        Returns:
            A future that is done when the checkpoint is complete. Leaving the `with` block waits for it.
        """
        future, step = self._under_way.save(Path(folder), keep), self.num_steps
        run = self._under_way
        future.when_written(lambda path: run.history.note("checkpoint", f"a checkpoint of step {step} is in {path}"))
        self._observer.saving(step, future)
        return future

    @user_frames_only
    def load(self, folder: str | Path) -> None:
        """Resume from the newest checkpoint in a folder (or from the given checkpoint), under any plan; drains first.

        Args:
            folder: the folder that was given to `save`, or one checkpoint in it.

        Raises:
            FileNotFoundError: there is no checkpoint.
            CheckpointCorrupt: the checkpoint is damaged; names the file.
            ValueError: the checkpoint belongs to another model.
        """
        before = self.num_steps
        self._under_way.load(Path(folder))
        self._tell_of_loading(before, "a checkpoint")

    @user_frames_only
    def to_module(self) -> nn.Module:
        """Return a copy of the model with the newest weights and buffers; drains first."""
        state = self._under_way.state_dict()
        assert self._graph is not None
        return filled(self._graph.model, {**state["parameters"], **state["buffers"]})

    # --- changing it --------------------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The plan that is carried out now, or was last; deaths and `resize` change it."""
        return (self._run or self._under_way).plan

    @user_frames_only
    def resize(self, stage: int, replicas: int) -> None:
        """Change the number of replicas of a stage; drains first.

        What the compressor of an `exchange` has kept back is dropped, with a warning: it belongs to one replica.

        Args:
            stage: the index of the stage.
            replicas: the number of replicas that it has afterwards, at least 1.

        Raises:
            PlanInvalid: there is no such stage, or fewer than one replica is asked for.
            ScheduleInvalid: the schedule cannot run the new plan.
        """
        had_exchange = self._under_way.has_exchange
        self._under_way.resize(stage, replicas)
        if had_exchange:
            self._tell_of_exchange("`resize` drops")

    # --- observing ----------------------------------------------------------------------------------------------------

    @property
    def events(self) -> tuple[str, ...]:
        """Events that a user should know about, such as deaths, oldest first; available after the end, too."""
        return tuple((self._run or self._under_way).events)

    def records(self) -> Mapping[PlanWorker, WorkerRecord]:
        """Return the recent actions of each worker, for an evaluation of your own; drains first."""
        return self._under_way.records()

    @user_frames_only
    def timeline(self, *paths: str | Path, num_steps: int = 1) -> MeasuredTimeline:
        """Return the actions of each worker in the last steps, with their times; drains first.

        Args:
            paths: files to write, with the predicted timeline beside the measured one: .json for ui.perfetto.dev,
                .svg for a picture.
            num_steps: the number of steps to show.

        Raises:
            ValueError: no step was done, or a path has another suffix.
        """
        run = self._under_way
        offsets = run.offsets(run.counters())
        measured = measured_timeline(run.plan, run.schedule, run.records(), offsets, num_steps=num_steps)
        for path in map(Path, paths):
            planned = ideal_timeline(run.plan, run.schedule, measured)
            if path.suffix == ".json":
                path.write_bytes(planned_and_measured_trace(planned, measured, called="ideal"))
            elif path.suffix == ".svg":
                path.write_text(planned_and_measured_svg(planned, measured, called="ideal"), encoding="utf-8")
            else:
                raise ValueError(f"a timeline is written to .json (for Perfetto) or .svg (a picture), not to {path}")
        return measured

    def view(self, panels: Mapping[str, int] | None = None) -> View:
        """Return what `ropewalk ps` and the page show about the trainer now; drains nothing. Any thread may call it.

        Args:
            panels: names of the panels whose data is wanted, of those that `View.offers` names, each with the cursor
                of its last data, or 0.
        """
        return self._target.view(panels)

    def _repr_html_(self) -> str:
        return trainer_html(self.view())

    @user_frames_only
    def report(self) -> TrainingReport:
        """Return what the training costs and where it waits, ready to print; drains first.

        Raises:
            ValueError: no step was done yet, or none since a checkpoint or state was loaded.
            RuntimeError: the trainer was closed, or has not seen the model with data yet.
        """
        run = self._under_way
        records, counters = run.records(), run.counters()
        return TrainingReport.of(
            run.plan,
            run.plan.prediction,
            records,
            counters,
            schedule=run.schedule,
            offsets=run.offsets(counters),
            samples_per_micro_batch=self._steps.samples_per_step / run.plan.micro_batches or None,
        )

    # --- starting -----------------------------------------------------------------------------------------------------

    @property
    def _under_way(self) -> TrainingRun:
        self._check_open()
        if self._run is None:
            if self._setup.needs_no_step:
                return self._begin(self._setup.example)
            raise RuntimeError(
                "this trainer has not seen the model with data yet; give example_inputs, or call step first"
            )
        return self._run

    def _check_open(self) -> None:
        if self._has_ended:
            raise RuntimeError("this trainer was closed; make a new one, and load what the last one saved")

    def _begin(self, x: Any) -> TrainingRun:
        setup, prepared = self._setup, self._setup.prepared(x)
        self._graph = prepared.graph
        if self._observer.is_on:
            config = {"model": type(prepared.graph.model).__name__, "seed": setup.seed, "device": prepared.device}
            self._observer.begin(setup.processes.name, prepared.plan, config, setup.seed)
        try:
            self._run = setup.run(prepared, track=self._observer.watched, shown_as=self._target)
        except BaseException as error:
            self._observer.end(error)
            self._target.end(error)
            raise
        self._target.begin(self._run, self._observer.run_id)
        return self._run


def _check_builds(model: nn.Module | Callable[[], nn.Module]) -> None:
    """Check that what is no module can be called without arguments, to build one."""
    if isinstance(model, nn.Module):
        return
    try:
        signature = inspect.signature(model)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return
    try:
        signature.bind()
    except TypeError as error:
        name = getattr(model, "__qualname__", type(model).__name__)
        kind = "class" if isinstance(model, type) else "function"
        raise TypeError(
            f"model is the {kind} {name}, which cannot be called without arguments ({error}); give the model itself, "
            f"{name}(...), or a function without arguments that makes it"
        ) from None


def _one_pair(error: NotTraceable) -> NotTraceable:
    """Return the error for a mini-batch that was given as one pair, which the model was given as two inputs."""
    told = NotTraceable(f"{error}. If x is the pair of inputs and labels, give them apart: step(x, y), or step(*batch)")
    told.operator = error.operator
    return told
