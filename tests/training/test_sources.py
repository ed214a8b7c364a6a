"""Every stage gets the first numbers of its own tensors, the same ones however the model is cut."""

from __future__ import annotations

import gc
import json
import math
import os
import pickle
import random
import struct
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ropewalk.errors import NotTraceable, PlanInvalid
from ropewalk.pipeline.stages.tensor_source import taken_like
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.training.blueprint import Blueprint
from ropewalk.training.building import build
from ropewalk.training.sources import GivenTensors, Initialised, SafetensorsFiles, Unset
from tests.pipeline.models import ResNet, Transformer


class Rotary(nn.Module):
    """A table that only its `__init__` can compute, and a mask that is no buffer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        table = torch.cos(torch.arange(width, dtype=torch.float32) * math.pi / width)
        self.register_buffer("table", table, persistent=False)
        self.mask = torch.ones(width, width).tril()
        self.table: Tensor
        self.scale = nn.Parameter(torch.randn(width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.table * self.scale) @ self.mask


def fill_twice(weight: Tensor) -> None:
    """An init that draws beside the weight, and twice if it sees numbers."""
    with torch.no_grad():
        weight.copy_(torch.randn(weight.shape))
        if not weight.is_meta:
            weight.add_(torch.randn(weight.shape))


class Mixed(nn.Module):
    """What is hard to make in parts: clones, ties, an init over all modules, other generators than torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.rotary = nn.Embedding(9, 8), Rotary(8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 9, bias=False)
        self.head.weight = self.embedding.weight
        shared = nn.Parameter(torch.rand(8, generator=torch.Generator().manual_seed(3)))
        self.first, self.second = nn.Module(), nn.Module()
        self.first.shared = self.second.shared = shared
        self.gain = nn.Parameter(torch.tensor(random.random()))
        self.apply(self._initialise)
        self.to(torch.float64)

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(module.weight.data, std=0.02, a=-0.03, b=0.03)  # draws until all are within
        if isinstance(module, nn.MultiheadAttention):
            fill_twice(module.in_proj_weight)


FACTORIES: dict[str, Any] = {
    "mixed": Mixed,
    "transformer": lambda: Transformer(16, 20, 8, 2, 0.1, True),
    "resnet": lambda: ResNet(4),
    "lstm": lambda: nn.Sequential(nn.LSTM(3, 4, 2), nn.Identity()),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_what_a_process_makes_of_a_factory_is_what_the_whole_model_has_to_the_bit(name: str) -> None:
    factory = FACTORIES[name]
    whole = build(factory, 5, keep=None).model
    parameters, buffers = dict(whole.named_parameters()), dict(whole.named_buffers())
    source = Initialised(factory, 5)
    for number in range(3):  # three stages, each with a third of all
        names = [*parameters, *buffers][number::3]
        found = source.take(names)
        assert all(torch.equal(found[one], {**parameters, **buffers}[one]) for one in names)
        assert all(found[one].dtype == {**parameters, **buffers}[one].dtype for one in names)
    other = Initialised(factory, 6).take(list(parameters))
    assert not all(torch.equal(other[one], parameters[one]) for one in parameters)


@pytest.mark.parametrize("name", FACTORIES)
def test_a_model_is_built_without_its_parameters_and_with_its_names_and_ties(name: str) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state(), random.getstate()
    built = build(FACTORIES[name], 5)
    whole = build(FACTORIES[name], 5, keep=None).model
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()
    for kind in ("named_parameters", "named_buffers"):
        mine, theirs = (dict(getattr(model, kind)(remove_duplicate=False)) for model in (built.model, whole))
        assert list(mine) == list(theirs)
        assert all(
            (a.shape, a.dtype, a.requires_grad) == (b.shape, b.dtype, b.requires_grad)
            for a, b in zip(mine.values(), theirs.values(), strict=True)
        )
        assert len({id(one) for one in mine.values()}) == len({id(one) for one in theirs.values()})
    assert all(one.is_meta for one in built.model.parameters())
    assert not any(one.is_meta for one in built.model.buffers())
    assert set(built.numbers) == set(dict(whole.named_parameters()))


def test_weights_are_given_back_while_the_model_is_still_being_built() -> None:
    alive: list[weakref.ref[Any]] = []
    most = 0

    def factory() -> nn.Module:
        nonlocal most
        layers: list[nn.Module] = []
        for _ in range(6):
            weight = nn.Parameter(torch.zeros(4, 4))
            alive.append(weakref.ref(weight))
            layer = nn.Linear(4, 4)
            layer.weight = weight
            layers.append(layer)
            del weight
            most = max(most, sum(one() is not None for one in alive))
        return nn.Sequential(*layers)

    gc.disable()
    try:
        build(factory, 0)
    finally:
        gc.enable()
    assert most == 0


def test_numbers_that_the_factory_makes_of_other_parameters_are_refused_by_name() -> None:
    def copies() -> nn.Module:
        first, second = nn.Linear(2, 2), nn.Linear(2, 2)
        with torch.no_grad():
            second.weight.copy_(first.weight)
        return nn.Sequential(first, second)

    with pytest.raises(NotTraceable, match=r"needs numbers of parameters.*give the trainer the model itself"):
        Initialised(copies).take(["1.weight"])

    def derives() -> nn.Module:
        first, second = nn.Linear(2, 2), nn.Linear(2, 2)
        second.weight = nn.Parameter(first.weight.detach() * 2)
        return nn.Sequential(first, second)

    with pytest.raises(PlanInvalid, match=r"'1.weight' of module '1' \(Linear\)"):
        Initialised(derives).take(["1.weight"])
    with pytest.raises(TypeError, match="must return the model"):
        build(lambda: 3, 0)  # pyright: ignore[reportArgumentType]


def test_files_give_the_slices_that_are_asked_for(tmp_path: Path) -> None:
    whole = build(Mixed, 5, keep=None).model
    parameters = {name: one.detach() for name, one in whole.named_parameters()}
    names = list(parameters)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({f"model.{name}": parameters[name].to(torch.bfloat16) for name in part}, tmp_path / file)
    index = {"metadata": {}, "weight_map": {f"model.{one}": file for file, part in halves.items() for one in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "z_other.safetensors").write_bytes(b"not of this model")
    source: SafetensorsFiles = pickle.loads(
        pickle.dumps(
            SafetensorsFiles(tmp_path, rename="model.{}".format, dtype=torch.float64, otherwise=Initialised(Mixed))
        )
    )
    wanted = [*names[:5], "rotary.table"]
    found = taken_like(source, wanted, {**dict(whole.named_buffers()), **parameters})
    assert list(found) == wanted
    for name in names[:5]:
        assert torch.equal(found[name], parameters[name].to(torch.bfloat16).double())
    assert torch.equal(found["rotary.table"], whole.get_buffer("rotary.table"))
    with pytest.raises(PlanInvalid, match=r"has no 'model.gain'|has no 'nowhere'"):
        SafetensorsFiles(tmp_path, rename="model.{}".format).take(["nowhere"])
    with pytest.raises(PlanInvalid, match=r"float64 of shape .* and torch.bfloat16"):
        taken_like(SafetensorsFiles(tmp_path / "a.safetensors", rename="model.{}".format), names[:1], parameters)


def write_crafted(path: Path, head: bytes | dict[str, Any], *, length: int | None = None, data: bytes = b"") -> Path:
    content = head if isinstance(head, bytes) else json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(content) if length is None else length) + content + data)
    return path


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}}


@pytest.mark.parametrize(
    ("head", "length", "message"),
    [
        (b"{}", 1 << 62, "its head would have 4611686018427387904 bytes"),
        (b"{}", 1 << 27, "its head would have 134217728 bytes, and the format allows 100000000"),
        (b"{}", 11, "its head would have 11 bytes, and the file has 18"),
        (b"\xff\xfe", None, "its head cannot be read"),
        (b"[1]", None, "its head cannot be read"),
        (b'{"w": 3}', None, "its head cannot be read"),
        (entry([2], 0, 16), None, "at the bytes 0 to 16 of its data, of which there are 8"),
        (entry([2], -8, 0), None, "at the bytes -8 to 0"),
        (entry([2], 8, 0), None, "at the bytes 8 to 0"),
        (entry([1], 0, 8), None, r"the shape \(1,\) of F32, and 8 bytes"),
        (entry([1 << 40], 0, 8), None, "and 8 bytes, which do not fit"),
        (entry([-1, -2], 0, 8), None, "and 8 bytes, which do not fit"),
        (entry([2], 0, 8, "Q9"), None, "a tensor of the type 'Q9'"),
        (entry([1 << 70], 0, 8), None, "its head cannot be read"),
        (entry([1] * 1000, 0, 4), None, "its head cannot be read"),
        (b'{"w":' * 100_000 + b"1" + b"}" * 100_000, None, "its head cannot be read"),
        ({**entry([2], 0, 8), "v": entry([1], 4, 8)["w"]}, None, "says that 'w' and 'v' have the same bytes"),
        ({**entry([2], 0, 8), "v": entry([2], 0, 8)["w"]}, None, "have the same bytes"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_file_that_says_what_cannot_be_is_refused_by_name(
    tmp_path: Path, head: bytes | dict[str, Any], length: int | None, message: str
) -> None:
    path = write_crafted(tmp_path / "crafted.safetensors", head, length=length, data=bytes(8))
    with pytest.raises(PlanInvalid, match=rf"crafted\.safetensors .*{message}"):
        SafetensorsFiles(path).take(["w"])


def test_a_file_too_short_for_the_length_of_a_head_is_refused_and_empty_tensors_are_not(tmp_path: Path) -> None:
    (tmp_path / "short.safetensors").write_bytes(b"abc")
    with pytest.raises(PlanInvalid, match=r"short\.safetensors is not a safetensors file: it has 3 bytes"):
        SafetensorsFiles(tmp_path / "short.safetensors").take(["w"])
    path = write_crafted(tmp_path / "fine.safetensors", {"__metadata__": {"format": "pt"}, **entry([0, 3], 0, 0)})
    assert SafetensorsFiles(path).take(["w"])["w"].shape == (0, 3)


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "a/../../secret.safetensors", "{root}/secret.safetensors", "\0secret.safetensors"]
)
def test_an_index_names_only_files_in_its_folder(tmp_path: Path, name: str) -> None:
    write_crafted(tmp_path / "secret.safetensors", entry([2], 0, 8), data=bytes(8))
    (tmp_path / "model").mkdir()
    index = tmp_path / "model" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": name.format(root=tmp_path)}}))
    with pytest.raises(PlanInvalid, match=r"index\.json names the file .*secret\.safetensors', which is not in its"):
        SafetensorsFiles(index.parent).take(["w"])
    for text in ("[]", '{"weight_map":' + "[" * 100_000):
        index.write_text(text)
        with pytest.raises(PlanInvalid, match=r"index\.json is not an index"):
            SafetensorsFiles(index.parent).take(["w"])


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for_and_links_are_followed(tmp_path: Path) -> None:
    """Caches of hubs have links; a pipe once held up whoever came by."""
    os.mkfifo(tmp_path / "pipe.safetensors")
    for path in (tmp_path, tmp_path / "pipe.safetensors"):
        with pytest.raises(PlanInvalid, match=r"pipe\.safetensors is not a file"):
            SafetensorsFiles(path).take(["w"])
    write_crafted(tmp_path / "blob", entry([2], 0, 8), data=bytes(8))
    (tmp_path / "link.safetensors").symlink_to("blob")
    assert SafetensorsFiles(tmp_path / "link.safetensors").take(["w"])["w"].tolist() == [0.0, 0.0]


def test_given_tensors_are_copied_and_unset_ones_are_like_the_model() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    graph = trace(model, torch.randn(2, 2, 5, 5))
    names = [*graph.parameters, *graph.buffers]
    found = GivenTensors({**graph.parameters, **graph.buffers}).take(names)
    for name, like in {**graph.parameters, **graph.buffers}.items():
        assert torch.equal(found[name], like) and found[name].data_ptr() != like.data_ptr()
        unset = Unset(Blueprint.of(graph, evaluates=False)).take([name])[name]
        assert (unset.shape, unset.dtype, unset.stride()) == (like.shape, like.dtype, like.stride())
    with pytest.raises(PlanInvalid, match="needs 'nowhere'"):
        GivenTensors({}).take(["nowhere"])
    with pytest.raises(PlanInvalid, match=r"'w' is on the device 'meta'.*Initialised"):
        GivenTensors({"w": torch.empty(2, device="meta")}).take(["w"])
