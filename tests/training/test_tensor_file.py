"""Files of tensors: the format that others read, and bytes that are checked one tensor at a time."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from ropewalk.errors import CheckpointCorrupt
from ropewalk.training.tensor_file import TensorReader, write_tensors

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.complex64, torch.int64, torch.int32, torch.int16, torch.int8, torch.bool),
    *(torch.uint64, torch.uint32, torch.uint16, torch.uint8),
]


def tensors_of_all_kinds() -> dict[str, Tensor]:
    made = {str(dtype): (torch.arange(1, 8) % 3).to(dtype) for dtype in DTYPES}
    return made | {
        "scalar": torch.tensor(1.5),
        "empty": torch.empty(0, 3),
        "turned": torch.randn(3, 4).T,
        "every second": torch.randn(8)[::2],
        "one of eight": torch.randn(8)[::8],
        "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
        "negated": torch.randn(1, dtype=torch.complex64).conj().imag,
        "läyer/1\n.weight": torch.randn(2, 3, requires_grad=True),
    }


def bits(tensor: Tensor) -> bytes:
    dense = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
    return dense.reshape(-1).view(torch.uint8).numpy().tobytes()


def test_tensors_of_all_kinds_come_back_and_any_reader_of_the_format_finds_the_same(tmp_path: Path) -> None:
    tensors = tensors_of_all_kinds()
    record = write_tensors(tmp_path / "f", tensors)
    others = load_file(tmp_path / "f")
    with TensorReader(tmp_path, "f", record) as reader:
        for name, tensor in tensors.items():
            for found in (reader.read(name), others[name]):
                assert found.dtype == tensor.dtype and found.shape == tensor.shape, name
                assert bits(found) == bits(tensor), name
    assert others.keys() == tensors.keys()
    with safe_open(tmp_path / "f", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_each_tensor_lies_where_its_type_can_be_mapped(tmp_path: Path) -> None:
    record = write_tensors(tmp_path / "f", tensors_of_all_kinds())
    for name, one in tensors_of_all_kinds().items():
        assert record.tensors[name].begin % one.element_size() == 0, name


def test_the_record_says_the_digest_that_sha256sum_would(tmp_path: Path) -> None:
    record = write_tensors(tmp_path / "f", {"a": torch.randn(100)})
    content = (tmp_path / "f").read_bytes()
    assert (record.size_bytes, record.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_a_file_without_tensors_is_a_file_of_the_format_too(tmp_path: Path) -> None:
    write_tensors(tmp_path / "f", {})
    assert load_file(tmp_path / "f") == {}


def test_what_was_read_can_be_changed(tmp_path: Path) -> None:
    record = write_tensors(tmp_path / "f", {"a": nn.Parameter(torch.zeros(3))})
    with TensorReader(tmp_path, "f", record) as reader:
        assert not reader.read("a").requires_grad
        reader.read("a").add_(1)
        assert reader.read("a").sum() == 0


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("mine")
    with pytest.raises(FileExistsError):
        write_tensors(tmp_path / "f", {})
    assert (tmp_path / "f").read_text() == "mine"


def test_only_the_damaged_tensor_cannot_be_read(tmp_path: Path) -> None:
    record = write_tensors(tmp_path / "f", {"a": torch.ones(3), "b": torch.ones(3)})
    content = bytearray((tmp_path / "f").read_bytes())
    content[record.tensors["b"].begin + 5] ^= 1
    (tmp_path / "f").write_bytes(content)
    with TensorReader(tmp_path, "f", record) as reader:
        assert torch.equal(reader.read("a"), torch.ones(3))
        with pytest.raises(CheckpointCorrupt, match=r"the bytes of 'b' are not those that were written \(CRC-32"):
            reader.read("b")


def test_a_file_that_is_cut_off_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """A mapped one would end the process by SIGBUS."""
    record = write_tensors(tmp_path / "f", {"a": torch.ones(1 << 20)})
    with TensorReader(tmp_path, "f", record) as reader:
        with open(tmp_path / "f", "r+b") as file:
            file.truncate(1 << 20)
        with pytest.raises(CheckpointCorrupt, match="'a'"):
            reader.read("a")
