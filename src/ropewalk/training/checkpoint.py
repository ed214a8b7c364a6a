"""Checkpoints by the names of the user's model: each stage writes its own part, and any plan can load them.

    stage processes       taken() ─▶ write_part ─▶ files in the folder, PartRecord ──┐
    controller            begin ─────────────────────────────────────────────────────┴─▶ commit
    any other time        read_manifest ─▶ Checkpoint.load(names of a stage) ─▶ give_back()

The cut of the model, the schedule and the numbers of replicas may change between writing
and loading; only the requested tensors are read, and each is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor, nn

from ropewalk.pipeline.tracing.named_tensors import modules_of, table_of
from ropewalk.tracking.state_tree import MalformedTree
from ropewalk.training import checkpoint_files
from ropewalk.training.checkpoint_parts import KINDS, OF_PARAMETERS, WEIGHTS, write_part
from ropewalk.training.manifests import (
    MANIFEST,
    Manifest,
    PartRecord,
    TensorRecord,
    check_digest,
    chunks,
    damaged,
    file_names,
)
from ropewalk.training.plain_state import decode
from ropewalk.training.tensor_file import TensorReader, dtype_of

_Number = Annotated[int, msgspec.Meta(ge=0)]


class _Values(msgspec.Struct, frozen=True):
    """The contents of a part besides its tensors: the number of the value of each parameter, and of `extra`."""

    optimizer: dict[str, _Number]
    options: dict[str, _Number]
    rates: dict[str, _Number]
    extra: _Number
    values: list[Any]


class Checkpoint:
    """A checkpoint whose tensors can be read by name; can be sent to other processes that reach its folder.

    Made by `read_manifest`.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        """The folder."""
        self.manifest = manifest

    def __repr__(self) -> str:
        return f"<Checkpoint {str(self.path)!r} of step {self.step}>"

    @property
    def step(self) -> int:
        """The number of training steps that the checkpoint holds."""
        return self.manifest.step

    @property
    def facts(self) -> dict[str, Any]:
        """Facts about the run as a whole, such as "num_steps" and "seed"."""
        return self.manifest.facts

    @property
    def num_steps(self) -> int:
        """The number of training steps that the checkpoint holds."""
        return self.manifest.step

    @property
    def seed(self) -> int:
        """The seed of the run's random numbers.

        Raises:
            CheckpointCorrupt: the checkpoint has no seed, or one that a torch generator does not accept.
        """
        value = self.facts.get("seed")
        if type(value) is not int or not -(1 << 63) <= value < 1 << 64:
            raise damaged(self.path / MANIFEST, f"its 'seed' is {value!r:.80}, and should be a number")
        return value

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts, as they were written."""
        return tuple(part.name for part in self.manifest.parts)

    @cached_property
    def parameters(self) -> dict[str, TensorRecord]:
        """All parameters, with dtype and shape."""
        return {name: record for part in self.manifest.parts for name, record in _records(part, part.parameters)}

    @cached_property
    def buffers(self) -> dict[str, TensorRecord]:
        """All buffers, with dtype and shape."""
        return {name: record for part in self.manifest.parts for name, record in _records(part, part.buffers)}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all parameters and buffers."""
        return (*self.parameters, *self.buffers)

    def load(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Read the state of these parameters and buffers, in the form that `saved_training.give_back` takes.

        Args:
            names: names of parameters and buffers of the model.

        Returns:
            The state by kind, then by name; tensors are on the CPU.

        Raises:
            ValueError: the checkpoint has no such name, so it belongs to another model.
            CheckpointCorrupt: the bytes read are not those that were written; names the file.
            FileNotFoundError: the checkpoint was removed, because newer ones were written.
        """
        wanted = self._known(names)
        state: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
        for part in self.manifest.parts:
            weights = self._weights(part, wanted)
            for kind, own in zip(WEIGHTS, (part.parameters, part.buffers), strict=True):
                state[kind] |= {name: weights[name] for name in own if name in wanted}
            if any(name in wanted for name in part.parameters):
                found = self._values(part, lambda kind, name: name in wanted)
                for kind in OF_PARAMETERS:
                    state[kind] |= found[kind]
        return state

    def whole_state(self) -> dict[str, Any]:
        """Return everything that was saved, facts included, in the form that `LocalExecutor.load_state_dict` takes.

        Raises:
            CheckpointCorrupt, FileNotFoundError: as `load`.
        """
        return {**self.facts, **self.load(self.names), "num_steps": self.num_steps, "seed": self.seed}

    def take(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Read parameters and buffers only, like a `TensorSource`: tensors on the CPU that the caller owns.

        Args:
            names: names of parameters and buffers of the model.

        Raises:
            ValueError, CheckpointCorrupt, FileNotFoundError: as `load`.
        """
        wanted = self._known(names)
        return {name: one for part in self.manifest.parts for name, one in self._weights(part, wanted).items()}

    def extra(self, part: str) -> Any:
        """Return the extra value that a part was written with.

        Args:
            part: the name of the part.

        Raises:
            ValueError: there is no such part.
            CheckpointCorrupt, FileNotFoundError: as `load`.
        """
        for one in self.manifest.parts:
            if one.name == part:
                return self._values(one, lambda kind, name: kind == "extra")["extra"]["extra"]
        raise ValueError(f"{self.path} has no part {part!r}; its parts are {', '.join(map(repr, self.parts))}")

    def check_fits(self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
        """Check, without reading tensors, that the checkpoint has exactly these, which may be on the device meta.

        Args:
            parameters: all parameters of the model, by name.
            buffers: all buffers that the checkpoint should have, by name.

        Raises:
            ValueError: a tensor is missing, unexpected, or of another shape or dtype; names it.
        """
        for kind, saved, own in (("parameter", self.parameters, parameters), ("buffer", self.buffers, buffers)):
            if odd := sorted(saved.keys() ^ own.keys()):
                where = "it, but not in the model" if odd[0] in saved else "the model, but not in it"
                raise ValueError(
                    f"{self.path} is of another model: {len(odd)} {kind}s do not fit, {odd[0]!r} is in {where}"
                )
            for name, record in saved.items():
                _check_alike(self.path, f"{kind} {name!r}", record, own[name], same_dtype=True)

    def verify(self) -> None:
        """Read every file and check each byte.

        Raises:
            CheckpointCorrupt: a file is not as it was written.
            FileNotFoundError: the checkpoint was removed, because newer ones were written.
        """
        for part in self.manifest.parts:
            for file, record in part.files.items():
                check_digest(self.path, file, record)

    def _known(self, names: Iterable[str]) -> set[str]:
        wanted = set(names)
        if odd := sorted(wanted - set(self.names)):
            raise ValueError(
                f"{self.path} is of another model: it has no {odd[0]!r} ({len(odd)} of {len(wanted)} names are not in "
                f"it); load a checkpoint of this model"
            )
        return wanted

    def _weights(self, part: PartRecord, wanted: Collection[str]) -> dict[str, Tensor]:
        file, _, _ = file_names(part.name)
        found = [name for name in part.files[file].tensors if name in wanted]
        if not found:
            return {}
        with TensorReader(self.path, file, part.files[file]) as reader:
            return {name: reader.read(name) for name in found}

    def _values(self, part: PartRecord, wanted: Callable[[str, str], bool]) -> dict[str, dict[str, Any]]:
        _, tensors_file, values_file = file_names(part.name)
        content = b"".join(chunks(self.path, values_file, part.files[values_file]))
        try:
            found = msgspec.json.decode(content, type=_Values)
            numbers = {"optimizer": found.optimizer, "options": found.options, "rates": found.rates}
            with TensorReader(self.path, tensors_file, part.files[tensors_file]) as reader:
                values = {
                    kind: {
                        name: decode(found.values[number], reader.read)
                        for name, number in of_kind.items()
                        if wanted(kind, name)
                    }
                    for kind, of_kind in {**numbers, "extra": {"extra": found.extra}}.items()
                }
        except (msgspec.MsgspecError, UnicodeDecodeError, IndexError, MalformedTree, RecursionError) as error:
            raise damaged(self.path / values_file, f"it holds no values as they are saved ({error})") from error
        for kind in OF_PARAMETERS:
            for name, value in values[kind].items():
                if not isinstance(value, dict):
                    raise damaged(self.path / values_file, f"{kind} of {name!r} is {value!r:.80}")
        return values


def read_manifest(path: Path | str) -> Checkpoint:
    """Open the newest checkpoint in the folder `path`, or the checkpoint at `path` itself.

    Args:
        path: a folder of checkpoints, or one checkpoint.

    Returns:
        The checkpoint; its tensors are not read yet.

    Raises:
        FileNotFoundError: there is no checkpoint.
        CheckpointCorrupt: its manifest is damaged; notes on the exception list the older checkpoints.
    """
    return Checkpoint(*checkpoint_files.read(path))


def load_module(path: Path | str, model: nn.Module, *, strict: bool = True) -> nn.Module:
    """Load the weights and buffers of a checkpoint into a model, for example for inference; needs no trainer.

    As in PyTorch, numbers are rounded to the dtypes of the model. Buffers that training did not use stay unchanged, and
    so do buffers with `persistent=False` that have another shape in the model, such as tables for longer texts.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from torch import nn
        >>> import ropewalk as rw
        >>> folder, x = tempfile.mkdtemp(), torch.randn(8, 3)
        >>> sgd = lambda parameters: torch.optim.SGD(parameters, 0.1)
        >>> with rw.Trainer(nn.Linear(3, 1), nn.MSELoss(), sgd, plan=1, micro_batches=2, inline=True) as trainer:
        ...     step = trainer.step(x, x.sum(1, keepdim=True))
        ...     written = trainer.save(folder)
        ...     trained = trainer.to_module()
        >>> torch.equal(rw.training.load_module(folder, nn.Linear(3, 1)).weight, trained.weight)
        True

    Args:
        path: a folder of checkpoints (the newest is loaded), or one checkpoint.
        model: a model of the trained architecture, on any device.
        strict: whether every parameter of the model must be in the checkpoint.

    Returns:
        The model.

    Raises:
        ValueError: the checkpoint belongs to another model; names the tensor that does not fit. The model is unchanged.
        FileNotFoundError: there is no checkpoint.
        CheckpointCorrupt: the checkpoint is damaged; some of the model's tensors may have been loaded.
    """
    checkpoint = read_manifest(path)
    own_of: dict[str, dict[str, Tensor]] = {
        # Tied parameters are listed under all their names: which of them was trained depends on the model.
        "parameter": dict(model.named_parameters(remove_duplicate=False)),
        "buffer": dict(model.named_buffers(remove_duplicate=False)),
    }
    kept = {name for name in _not_persistent(model) if name in checkpoint.buffers
            and tuple(own_of["buffer"][name].shape) != checkpoint.buffers[name].shape}  # fmt: skip
    for kind, saved in (("parameter", checkpoint.parameters), ("buffer", checkpoint.buffers)):
        for name, record in saved.items():
            if name in kept:
                continue
            if name not in own_of[kind]:
                raise ValueError(
                    f"{checkpoint.path} is of another model: {type(model).__name__} has no {kind} {name!r}"
                )
            own = own_of[kind][name]
            _check_alike(checkpoint.path, f"{kind} {name!r}", record, own, same_dtype=False)
            if own.is_meta:
                raise ValueError(f"{kind} {name!r} is on the device meta; call model.to_empty(device=...) first")
    if strict:
        loaded = {id(own_of["parameter"][name]) for name in checkpoint.parameters}
        for name, own in own_of["parameter"].items():
            if id(own) not in loaded:
                raise ValueError(
                    f"parameter {name!r} of {type(model).__name__} is not in {checkpoint.path}: it is of another "
                    f"model, or does not train it; give strict=False to leave it as it is"
                )
    with torch.no_grad():
        for part in checkpoint.manifest.parts:  # one at a time, so that little is in memory twice
            wanted = [name for name in (*part.parameters, *part.buffers) if name not in kept]
            for name, tensor in checkpoint.take(wanted).items():
                (own_of["parameter"] | own_of["buffer"])[name].copy_(tensor)
    return model


def _not_persistent(model: nn.Module) -> list[str]:
    """Return the names of the buffers that are in no state_dict of the model."""
    return [
        f"{path}.{name}" if path else name
        for path, module in modules_of(model, all_names=True).items()
        for name in module.__dict__["_non_persistent_buffers_set"]
        if table_of(module, "_buffers").get(name) is not None
    ]


def save(folder: Path | str, state: Mapping[str, Any], *, keep: int | None = 2, **facts: Any) -> Path:
    """Write a whole state, such as that of a `LocalExecutor`, as one part.

    Args:
        folder: the folder of all checkpoints of this training.
        state: the result of `LocalExecutor.state_dict`.
        keep: the number of checkpoints to keep in the folder; None: all.
        facts: further plain data (JSON) to be read back with the state.

    Returns:
        The path of the checkpoint.

    Raises:
        TypeError: the state holds a value that cannot be written without pickle.
        OSError: the checkpoint cannot be written; earlier checkpoints are unchanged.
    """
    of_run = {key: value for key, value in state.items() if key not in KINDS}
    with checkpoint_files.begin(folder, int(state["num_steps"]), keep=keep) as writing:
        return writing.commit([write_part(writing.path, "whole", state)], {**of_run, **facts})


def _check_alike(path: Path, what: str, record: TensorRecord, own: Tensor, *, same_dtype: bool) -> None:
    dtype = dtype_of(record)
    if record.shape != tuple(own.shape) or (same_dtype and dtype != own.dtype):
        raise ValueError(
            f"{what} is {dtype} of shape {record.shape} in {path}, and {own.dtype} of shape {tuple(own.shape)} in the "
            f"model; load a checkpoint of this model"
        )


def _records(part: PartRecord, names: Iterable[str]) -> list[tuple[str, TensorRecord]]:
    file, _, _ = file_names(part.name)
    tensors = part.files[file].tensors
    return [(name, tensors[name]) for name in names]


__all__ = ["Checkpoint", "load_module", "read_manifest", "save"]
