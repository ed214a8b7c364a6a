"""Tensors in a file of the safetensors format, written and read sequentially, with their checksums.

    header, which follows from the tensors (`tensor_header`) │ bytes of one tensor after the other

Any reader of safetensors (https://huggingface.co/docs/safetensors) can read these files, and tests do so with its
package. That package is not used here: this module computes digests while it writes, reports a full disk as an
`OSError` with its errno, and a file that is truncated while it is read is an error, where a mapped one would be a
SIGBUS.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.tensor_header import lay_out
from ropewalk.training.manifests import FileRecord, TensorRecord, damaged, opened, write_file

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


def check_writable(tensor: Tensor, what: str) -> None:
    """Raise if a tensor cannot be written to a file.

    Args:
        tensor: on any device.
        what: words for it, such as "parameter 'layer.weight'".

    Raises:
        TypeError: the tensor cannot be written; describes it.
    """
    kind = ""
    if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
        kind = f"of the class {type(tensor).__name__}"
    elif tensor.layout is not torch.strided:
        kind = f"of the layout {tensor.layout}"
    elif tensor.is_meta:
        kind = "on the device meta, without data"
    elif tensor.dtype not in _CODES:
        kind = f"of {tensor.dtype}"
    if kind:
        raise TypeError(
            f"{what} is a tensor {kind}, which a checkpoint cannot hold; it can hold dense torch.Tensors of "
            f"{', '.join(sorted(str(dtype).removeprefix('torch.') for dtype in _CODES))}"
        )


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileRecord:
    """Write a new file; returns when it is on the disk.

    Args:
        path: the path of the file.
        tensors: tensors that `check_writable` accepts; they must not change meanwhile. Tensors on other devices are
            copied one by one.

    Returns:
        The record of the file.

    Raises:
        OSError: the file cannot be written, or exists.
    """
    head, places, _ = lay_out({name: (_CODES[one.dtype], tuple(one.shape)) for name, one in tensors.items()})
    checksums: dict[str, int] = {}

    def parts() -> Iterator[bytes | memoryview]:
        yield head
        for name in places:
            content = _bytes_of(_on_cpu(tensors[name]))
            checksums[name] = zlib.crc32(content)
            yield content

    size_bytes, sha256 = write_file(path, parts())
    records = {
        name: TensorRecord(
            dtype=_CODES[one.dtype],
            shape=tuple(one.shape),
            begin=places[name][0],
            size_bytes=places[name][1],
            crc32=checksums[name],
        )
        for name, one in tensors.items()
    }
    return FileRecord(size_bytes, sha256, records)


class TensorReader:
    """Reads tensors of one file by name, and checks each.

    Raises:
        CheckpointCorrupt: the file is missing, or has another length or header than was written.
    """

    def __init__(self, save: Path, file: str, record: FileRecord) -> None:
        self._path = save / file
        self._record = record
        self._file = opened(save, file, record)

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def read(self, name: str) -> Tensor:
        """Return a tensor, in memory of its own.

        Args:
            name: the name of the tensor in the file.

        Raises:
            CheckpointCorrupt: the tensor is missing, or its bytes are not those that were written.
        """
        record = self._record.tensors.get(name)
        if record is None:
            raise damaged(self._path, f"it has no tensor {name!r}, of which the checkpoint speaks")
        try:
            tensor = torch.empty(record.shape, dtype=dtype_of(record))
        except (RuntimeError, TypeError) as error:  # too little memory, or more dimensions than torch supports
            raise damaged(self._path, f"{name!r} would have the shape {record.shape}: {error}") from error
        content = _bytes_of(tensor)
        self._file.seek(record.begin)
        # Bytes that a short read leaves unwritten may by chance be the right ones.
        if self._file.readinto(content) != record.size_bytes or zlib.crc32(content) != record.crc32:
            raise damaged(self._path, f"the bytes of {name!r} are not those that were written (CRC-32 differs)")
        return tensor


def is_known(record: TensorRecord) -> bool:
    """Whether torch has the dtype of a tensor."""
    return record.dtype in _DTYPES


def dtype_of(record: TensorRecord) -> torch.dtype:
    """Return the dtype of a tensor."""
    return _DTYPES[record.dtype]


def _on_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a dense tensor on the CPU."""
    # A tensor of one element is dense with any stride, and only stride 1 can be viewed as bytes.
    flat = tensor.as_strided((tensor.numel(),), (1,))
    array: Any = flat.view(torch.uint8).numpy()  # numpy's types do not say that it is a buffer
    return memoryview(array)


__all__ = ["TensorReader", "check_writable", "dtype_of", "is_known", "write_tensors"]
