"""Where stage processes take the initial values of their tensors from (`TensorSource`).

GivenTensors     tensors that the launcher has, and sends
Initialised      the factory's own initialisation, for each process only what its stages need
SafetensorsFiles slices of files that all processes can open, such as a model from a hub
Unset            arbitrary values, for stages that get theirs later (a checkpoint, a snapshot)

All but the first send names and no values, so that no process, the launcher included, needs
more memory than its stages do.
"""

from __future__ import annotations

import math
import os
import stat
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from io import BufferedReader
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from ropewalk.errors import PlanInvalid
from ropewalk.pipeline.stages.tensor_source import GivenTensors, TensorSource
from ropewalk.training.blueprint import Blueprint, TensorSpec
from ropewalk.training.building import Factory, build
from ropewalk.training.manifests import TensorRecord
from ropewalk.training.tensor_file import dtype_of, is_known

_MOST_HEAD_BYTES = 100_000_000
"""The format's limit for a header, and the longest index that is read."""


class Unset:
    """Tensors with arbitrary values.

    Args:
        blueprint: gives their shapes and dtypes.
    """

    def __init__(self, blueprint: Blueprint) -> None:
        self._specs: dict[str, TensorSpec] = {**blueprint.buffers, **blueprint.parameters}

    def take(self, names: Sequence[str]) -> Mapping[str, Tensor]:
        """Return new, uninitialised tensors."""
        return {name: self._specs[name].empty("cpu") for name in names}


class Initialised:
    """The values that a factory gives its model; see `building` for why they do not depend on the cut.

    Args:
        factory: builds the model; it is sent to the stages.
        seed: determines its random numbers.
        numbers: the numbers from `build(factory, seed)`, if that was called already; otherwise it is called for them.
    """

    def __init__(self, factory: Factory, seed: int = 0, numbers: Mapping[str, tuple[int, ...]] | None = None) -> None:
        self._factory = factory
        self._seed = seed
        self._numbers = build(factory, seed).numbers if numbers is None else numbers

    def take(self, names: Sequence[str]) -> Mapping[str, Tensor]:
        """Run the factory, and keep the named tensors.

        Args:
            names: names of parameters and buffers of the model.

        Raises:
            PlanInvalid: the factory does not make one of them, or makes one from the numbers of other parameters.
        """
        keep = {number for name in names for number in self._numbers.get(name, ())}
        model = build(self._factory, self._seed, keep).model
        made: dict[str, Tensor] = {**dict(model.named_buffers()), **dict(model.named_parameters())}
        for name in names:
            path = name.rpartition(".")[0]
            if name not in made:
                raise PlanInvalid(
                    f"the factory made no {name!r} in this process; it must make the same model at each call"
                )
            if made[name].is_meta:
                kind = type(model.get_submodule(path)).__name__
                raise PlanInvalid(
                    f"the factory does not say what {name!r} of module {path!r} ({kind}) begins with: it was made on "
                    f"the device 'meta', or from other parameters, which are on meta while stages are made. Let the "
                    f"factory make it on the CPU from itself, or give the trainer the model instead of its factory, "
                    f"or SafetensorsFiles with its numbers"
                )
        # Some tensors share their memory with others; each gets its own, so that the model can be freed.
        return {name: made[name].detach().clone() if _is_part(made[name]) else made[name].detach() for name in names}


def _is_part(tensor: Tensor) -> bool:
    return tensor.untyped_storage().nbytes() != tensor.nbytes


class _FilePlace(NamedTuple):
    """The position of a tensor in the files."""

    path: Path
    record: TensorRecord


_Number = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]


class _Entry(msgspec.Struct):
    """The entry of one tensor in the header of a file."""

    dtype: str
    shape: Annotated[tuple[_Number, ...], msgspec.Meta(max_length=64)]  # torch's own loops support no more
    data_offsets: tuple[_Number, _Number]


class _Index(msgspec.Struct):
    """An index that maps each tensor to its file."""

    weight_map: dict[str, str]


class SafetensorsFiles:
    """Tensors in files of the safetensors format (https://huggingface.co/docs/safetensors).

    Only the headers of the files and the bytes of the requested tensors are read.

    Args:
        path: a file, or a folder with files and optionally a `model.safetensors.index.json`, as hubs have; the same in
            all processes.
        rename: maps the name of a parameter or buffer of the model to its name in the files; None: the same name.
        dtype: the dtype that floating point tensors are converted to; None: they are not converted.
        otherwise: a source for tensors that the files lack, such as buffers that are not saved.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        rename: Callable[[str], str] | None = None,
        dtype: torch.dtype | None = None,
        otherwise: TensorSource | None = None,
    ) -> None:
        self._path = Path(path).absolute()
        self._rename = rename
        self._dtype = dtype
        self._otherwise = otherwise

    def take(self, names: Sequence[str]) -> Mapping[str, Tensor]:
        """Read the named tensors.

        Args:
            names: names of parameters and buffers of the model.

        Raises:
            PlanInvalid: a tensor is missing, or a file is damaged.
            OSError: a file cannot be read.
        """
        found: dict[str, Tensor] = {}
        missing: list[str] = []
        for name in names:
            place = self._places.get(name if self._rename is None else self._rename(name))
            if place is None:
                missing.append(name)
            else:
                found[name] = self._read(place)
        if missing and self._otherwise is None:
            there = ", ".join(list(self._places)[:4])
            raise PlanInvalid(
                f"{self._path} has no {missing[0]!r}{f' and {len(missing) - 1} others' if missing[1:] else ''}; it has "
                f"{len(self._places)} tensors: {there}, ... Say with rename= what they are called there, and with "
                f"otherwise= where the others come from"
            )
        return {**found, **self._otherwise.take(missing)} if missing and self._otherwise is not None else found

    def _read(self, place: _FilePlace) -> Tensor:
        record = place.record
        if not is_known(record):
            raise PlanInvalid(f"{place.path} has a tensor of the type {record.dtype!r}, which torch does not have here")
        tensor = torch.empty(record.shape, dtype=dtype_of(record))
        content: Any = tensor.reshape(-1).view(torch.uint8).numpy()
        with _open(place.path) as file:
            file.seek(record.begin)
            if file.readinto(memoryview(content)) != tensor.nbytes:
                raise PlanInvalid(f"{place.path} ends within a tensor of shape {record.shape}; get it again")
        return tensor.to(self._dtype) if self._dtype is not None and tensor.is_floating_point() else tensor

    @cached_property
    def _places(self) -> dict[str, _FilePlace]:
        return {name: _FilePlace(path, record) for path in _files(self._path) for name, record in _head(path).items()}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_places"}


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    indexes = sorted(path.glob("*.safetensors.index.json"))
    if indexes:
        return _named_in(indexes[0])
    if not (files := sorted(path.glob("*.safetensors"))):
        raise PlanInvalid(f"there is no file *.safetensors in {path}")
    return files


def _named_in(index: Path) -> list[Path]:
    """Return the files that an index names, which must be in its folder or below."""
    try:
        with _open(index) as file:
            named = msgspec.json.decode(file.read(_MOST_HEAD_BYTES), type=_Index).weight_map.values()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PlanInvalid(f"{index} is not an index of safetensors files: {error}; get it again") from error
    for name in named:
        parts = PureWindowsPath(name).parts
        if (
            PurePosixPath(name).is_absolute()
            or PureWindowsPath(name).anchor
            or ".." in parts
            or "\0" in name
            or not parts
        ):
            raise PlanInvalid(f"{index} names the file {name!r}, which is not in its folder; nothing outside is read")
    return [index.parent / name for name in dict.fromkeys(named)]


def _head(path: Path) -> dict[str, TensorRecord]:
    """Read the header of a file: the dtype, shape and offset of each tensor."""
    with _open(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes < 8:
            raise PlanInvalid(f"{path} is not a safetensors file: it has {size_bytes} bytes; get it again")
        (length,) = struct.unpack("<Q", file.read(8))
        if length > _MOST_HEAD_BYTES:
            raise PlanInvalid(
                f"{path} is not a safetensors file: its head would have {length} bytes, and the format allows "
                f"{_MOST_HEAD_BYTES}; get it again"
            )
        if length > size_bytes - 8:
            raise PlanInvalid(
                f"{path} is not a safetensors file, or not whole: its head would have {length} bytes, and the file has "
                f"{size_bytes}; get it again"
            )
        content = file.read(length)
    try:
        head = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        head.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in head.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PlanInvalid(
            f"{path} is not a safetensors file: its head cannot be read: {error}; get it again"
        ) from error
    records = {name: _record(path, name, entry, 8 + length, size_bytes) for name, entry in entries.items()}
    end, before = 0, ""
    for name, record in sorted(records.items(), key=lambda item: (item[1].begin, item[1].size_bytes)):
        if record.begin < end and record.size_bytes:
            raise PlanInvalid(f"{path} says that {before!r} and {name!r} have the same bytes; get it again")
        if record.begin + record.size_bytes > end:
            end, before = record.begin + record.size_bytes, name
    return records


def _open(path: Path) -> BufferedReader:
    """Open a file that may be untrusted, also through a link, as hub caches have them; does not wait for a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PlanInvalid(f"{path} is not a file; name files of the safetensors format, or their folder")
    return open(descriptor, "rb")


def _record(path: Path, name: str, entry: _Entry, first: int, size_bytes: int) -> TensorRecord:
    """Return the location of a tensor, checked to be within the file's data from `first` on, and to fit its shape."""
    begin, end = entry.data_offsets
    record = TensorRecord(dtype=entry.dtype, shape=entry.shape, begin=first + begin, size_bytes=end - begin, crc32=0)
    if not 0 <= begin <= end <= size_bytes - first:
        raise PlanInvalid(
            f"{path} says that {name!r} lies at the bytes {begin} to {end} of its data, of which there are "
            f"{size_bytes - first}; get it again"
        )
    # A dtype that torch lacks is refused only when such a tensor is requested.
    wanted = math.prod(entry.shape) * dtype_of(record).itemsize if is_known(record) else record.size_bytes
    if min(entry.shape, default=0) < 0 or wanted != record.size_bytes:
        raise PlanInvalid(
            f"{path} says that {name!r} has the shape {entry.shape} of {entry.dtype}, and {record.size_bytes} bytes, "
            f"which do not fit; get it again"
        )
    return record


__all__ = ["GivenTensors", "Initialised", "SafetensorsFiles", "TensorSource", "Unset"]
