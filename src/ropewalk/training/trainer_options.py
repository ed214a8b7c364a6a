"""Options of a `Trainer`, grouped: its processes and their snapshots, what it reads by itself, its progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Literal

import torch

from ropewalk.argument_kinds import check_callable, check_kind, check_number
from ropewalk.engines.resources import Resources, check_resources
from ropewalk.processes.session import Session
from ropewalk.training.further_copies import Where
from ropewalk.training.own_data import MakesData
from ropewalk.training.snapshot_pace import SnapshotPace
from ropewalk.training.stage_device import kind_of_device
from ropewalk.training.timeouts import TrainerTimeouts


@dataclass(frozen=True, slots=True)
class Snapshots:
    """How often snapshots for recovery are taken, and where a further copy of the newest ones is kept.

    Example:
        >>> Snapshots(every=100, copy="launcher")
        Snapshots(every=100, copy='launcher')

    Args:
        every: steps between two snapshots, at least 1; "auto": as few as keep the cost within 3 % of the time.
        copy: where a copy of the newest snapshots is kept besides each process and its keeper, so that training
            survives any simultaneous deaths: "launcher", in the memory of this process; or a folder that all processes
            can reach. "auto": with the launcher, if the snapshots take 32 MiB or less, or if there is only one
            process. None: no further copy.

    Raises:
        ValueError: `every` is less than 1.
        TypeError: `every` is no number of steps, or `copy` neither a folder nor one of the words.
    """

    every: int | Literal["auto"] = "auto"
    copy: Literal["auto", "launcher"] | str | Path | None = "auto"

    def __post_init__(self) -> None:
        if self.every != "auto":
            check_kind("every", self.every, Integral, "a number of steps, or 'auto'", required=True)
        self.pace()
        check_kind("copy of snapshots", self.copy, str | Path, '"auto", "launcher", a folder, or None')

    def pace(self) -> SnapshotPace:
        """Return a counter of the steps of one training that says when a snapshot is due."""
        return SnapshotPace(self.every)

    @property
    def where(self) -> Where:
        """Return `copy`, with a folder as a path."""
        if self.copy is None or self.copy == "auto" or self.copy == "launcher":
            return self.copy
        return Path(self.copy)


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Where the processes of a trainer run, with which resources and devices, and what happens when they die.

    Example:
        >>> ProcessOptions(engine="slurm", resources=Resources(cpus=4), name="unet").name
        'unet'

    Args:
        engine: where processes run; None: the setting.
        session: the session that the processes belong to; None: one that all programs and pools of this process share.
        resources: the resources that each process requests; None: the setting.
        environment: environment variables of the processes, by name; None: no extra ones.
        name: the name of the program; shown in `ropewalk ps`.
        device: what stages compute on, with `inline` too: "cpu", "cuda" (the GPUs that each process sees, one for each
            worker while there are enough), or one GPU for all such as "cuda:1". None: "cuda" for a model that is on a
            GPU, else "cpu".
        snapshots: how often snapshots for recovery are taken, and where a further copy of them is kept. None: no
            snapshots are taken, and the death of a process ends the training.
        timeouts: how long the trainer waits for each event, and how many deaths end it.

    Raises:
        TypeError: an option is of the wrong type.
        PlanInvalid: `device` names no device, or one of a kind that stages cannot compute on.
    """

    engine: str | None = None
    session: Session | None = None
    resources: Resources | None = None
    environment: Mapping[str, str] | None = None
    name: str = "trainer"
    device: str | torch.device | None = None
    snapshots: Snapshots | None = field(default_factory=Snapshots)
    timeouts: TrainerTimeouts = field(default_factory=TrainerTimeouts)

    def __post_init__(self) -> None:
        check_kind("engine", self.engine, str, 'its name, "local"')
        check_kind("session", self.session, Session, "ropewalk.Session()")
        check_resources(self.resources)
        check_kind("environment", self.environment, Mapping, 'variables by name, {"OMP_NUM_THREADS": "1"}')
        check_kind("snapshots", self.snapshots, Snapshots, "ropewalk.training.Snapshots(every=100), or None")
        example = "ropewalk.training.TrainerTimeouts(silent_s=10.0)"
        check_kind("timeouts", self.timeouts, TrainerTimeouts, example, required=True)
        check_kind("name", self.name, str, 'a text, "unet"', required=True)
        if self.device is not None:
            kind_of_device(self.device)


@dataclass(frozen=True, slots=True)
class Sources:
    """What processes read by themselves, so that it does not pass through the process of the trainer.

    Example:
        >>> Sources(weights="llama/model.safetensors.index.json").data is None
        True

    Args:
        data: gives mini-batches to the processes that need inputs or labels: called there as `data(first_step)`, it
            yields pairs (x, y) from that step on, the same everywhere; a function without that argument is called anew
            and its earlier pairs are skipped. Random numbers that it draws from torch, Python or numpy follow from the
            seed of the trainer, so that a DataLoader that shuffles gives one order everywhere. With an argument
            `shard`, it yields only the samples of that replica: those of the micro-batches `range(shard.replica,
            shard.micro_batches, shard.replicas)`, one after the other.
            `step` is then called without arguments, and `example_inputs` must be given.
        weights: a safetensors file, or a folder or index of such files, with the initial parameters and buffers.

    Raises:
        ValueError: `weights` is a file that was written by `torch.save`.
        TypeError: an option is of the wrong type.
    """

    data: MakesData | None = None
    weights: str | Path | None = None

    def __post_init__(self) -> None:
        check_callable("data", self.data, "a function of a step that yields pairs (x, y)")
        check_kind("weights", self.weights, str | Path, "the path of safetensors files")
        if self.weights is not None and Path(self.weights).suffix in (".pt", ".pth", ".bin"):
            raise ValueError(
                f"weights are read from safetensors files, and {self.weights} is none by its name; convert it with "
                f"safetensors.torch.save_file(torch.load(...), 'model.safetensors'), or load it into the model"
            )


@dataclass(frozen=True, slots=True)
class Progress:
    """How a trainer says how far it is.

    Example:
        >>> Progress(total_steps=1000)
        Progress(total_steps=1000, line=True)

    Args:
        total_steps: the number of steps that you mean to train for, those of a loaded state included: the page,
            `ropewalk top` and the line then show the share that is done, and the time left. It limits nothing.
        line: print a line each second: step, loss, rates.

    Raises:
        ValueError: `total_steps` is less than 1.
        TypeError: it is no whole number.
    """

    total_steps: int | None = None
    line: bool = True

    def __post_init__(self) -> None:
        check_number("total_steps", self.total_steps, Integral, "the number of steps of the whole training", least=1)

    @classmethod
    def of(cls, given: bool | Progress) -> Progress:
        """Return progress as it is, and True or False as one with or without the line."""
        check_kind("progress", given, bool | Progress, "True, or ropewalk.training.Progress(total_steps=1000)")
        return given if isinstance(given, Progress) else cls(line=given)
