from __future__ import annotations

import sys
import threading
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ropewalk.errors import NotPicklable
from ropewalk.exchange import tensor_codec
from ropewalk.exchange.tensor_codec import ALIGN, TensorCodec, note_of
from ropewalk.transport.main_namespace import MainFacts, MainNamespace
from tests.forked_process import ForkedProcess


@dataclass(frozen=True)
class Record:
    hidden: Any
    mask: Any = None


class Pair(NamedTuple):
    left: Any
    right: Any


Loose = namedtuple("Loose", "one")  # pyright: ignore[reportUntypedNamedTuple]


class Outputs(OrderedDict[str, Any]):
    """Such as models return."""


def memory_of(blob: Tensor) -> memoryview:
    array: Any = blob.numpy()
    return memoryview(array)


def there_and_back(tree: Any, note: bytes = b"") -> Any:
    encoded = TensorCodec().encode(tree, note)
    blob = encoded.to_tensor()
    return TensorCodec().decode(memory_of(blob))


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is (Tensor if type(expected) is nn.Parameter else type(expected))
    if isinstance(expected, Tensor):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        assert found.requires_grad == expected.requires_grad and found.is_leaf
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for name in expected:
            assert_same(found[name], expected[name])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, Record):
        assert_same((found.hidden, found.mask), (expected.hidden, expected.mask))
    else:
        assert found == expected


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.bool, torch.uint8, torch.int64,
]  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    made = torch.arange(torch.Size(shape).numel()).remainder(100).to(dtype).reshape(shape)
    made = made.permute(draw(st.permutations(range(len(shape)))))
    if shape and made.shape[-1] > 1 and draw(st.booleans()):
        made = made[..., :: draw(st.integers(1, 2))] if draw(st.booleans()) else made[..., 1:]
    if draw(st.booleans()):
        made = made.unsqueeze(0).expand(draw(st.integers(1, 3)), *made.shape)
    return made.requires_grad_() if dtype.is_floating_point and draw(st.booleans()) else made


leaves = st.one_of(tensors(), st.none(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5), st.booleans())
trees = st.recursive(
    leaves,
    lambda children: st.one_of(
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(), st.booleans()), children, max_size=3),
        st.dictionaries(st.text(max_size=3), children, max_size=3).map(Outputs),
        st.builds(Record, children, children),
        st.builds(Pair, children, children),
        st.builds(Loose, children),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(trees)
def test_a_tree_comes_back_as_it_was(tree: Any) -> None:
    assert_same(there_and_back(tree), tree)


@settings(max_examples=40, deadline=None)
@given(st.lists(trees, max_size=6), st.integers(1, 3))
def test_remembering_kinds_of_trees_changes_nothing(many: list[Any], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_codec, "_MOST_KINDS", most)
        sender, receiver = TensorCodec(), TensorCodec()
        for tree in [*many, *many]:
            assert_same(receiver.decode(memory_of(sender.encode(tree).to_tensor())), tree)


def test_the_structure_of_trees_that_are_alike_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    dumps = tensor_codec.dumps_with_code

    def counted(value: Any, what: str) -> Any:
        made.append(value)
        return dumps(value, what=what)

    monkeypatch.setattr(tensor_codec, "dumps_with_code", counted)
    codec = TensorCodec()
    for number in range(5):
        codec.encode({"x": (torch.full((3, 2), number), number), "y": None})
    assert len(made) == 1
    codec.encode({"x": (torch.full((2, 3), 1), 1), "y": None})
    codec.encode({"x": (torch.full((3, 2), 1), 1), "z": None})
    assert len(made) == 3


def test_keys_that_are_equal_but_not_the_same_are_told_apart() -> None:
    codec = TensorCodec()
    for key in (1, True, 1.0):
        (found,) = TensorCodec().decode(memory_of(codec.encode({key: None}).to_tensor()))
        assert type(found) is type(key)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.rand(4, 5).t(),
        torch.rand(3, 8)[:, 1:6],
        torch.rand(1, 4).expand(5, 4),
        torch.tensor(2.5).expand(3, 3),
        torch.rand(20).as_strided((3, 4), (2, 3)),
    ],
    ids=["channels_last", "transposed", "a part of each row", "expanded", "one number", "overlapping"],
)
def test_strides_stay_as_they_are(tensor: Tensor) -> None:
    found = there_and_back(tensor)
    assert found.stride() == tensor.stride() and torch.equal(found, tensor)


def test_an_expanded_tensor_takes_no_more_than_its_memory() -> None:
    assert TensorCodec().encode(torch.rand(1, 4).expand(100_000, 4)).size_bytes < 2000


def test_a_tensor_with_wide_gaps_is_made_dense_in_the_order_of_its_strides() -> None:
    tensor = torch.rand(50, 60, 100)[:, :, 0].t()
    found = there_and_back(tensor)
    assert tensor.stride() == (100, 6000) and found.stride() == (1, 60)
    assert torch.equal(found, tensor)
    assert TensorCodec().encode(tensor).size_bytes < 4 * 3000 + 1000


def test_conjugated_and_negated_views_come_as_their_values() -> None:
    tensor = torch.rand(4, dtype=torch.complex64)
    assert tensor.conj().is_conj() and tensor.conj().imag.is_neg()
    assert_same(there_and_back((tensor.conj(), tensor.conj().imag)), (tensor.conj().resolve_conj(), -tensor.imag))
    assert there_and_back(tensor.conj().requires_grad_()).requires_grad


def test_decoded_tensors_lie_in_the_memory_and_are_aligned() -> None:
    blob = TensorCodec().encode((torch.zeros(3), [torch.zeros(5, 5)])).to_tensor()
    first, (second,) = TensorCodec().decode(memory_of(blob))
    for tensor in (first, second):
        assert tensor.data_ptr() % ALIGN == blob.data_ptr() % ALIGN
        assert blob.data_ptr() < tensor.data_ptr() < blob.data_ptr() + blob.numel()
    before = blob.clone()
    second += 1
    assert not torch.equal(blob, before)


def test_decoded_tensors_are_leaves_of_their_own_also_where_autograd_is_off() -> None:
    with torch.no_grad():
        found = there_and_back(torch.zeros(2, 3, requires_grad=True))
        plain = there_and_back(torch.zeros(2, 3))
    assert found.is_leaf and not found._is_view() and not plain._is_view()
    plain.add_(found)
    plain.sum().backward()
    assert torch.equal(found.grad, torch.ones(2, 3))


def test_memory_is_kept_by_each_of_its_tensors() -> None:
    blob = TensorCodec().encode((torch.full((4,), 1.0), torch.full((4,), 2.0))).to_tensor()
    memory = memory_of(blob)
    _, second = TensorCodec().decode(memory)
    del blob, memory
    assert torch.equal(second, torch.full((4,), 2.0))


def test_the_note_can_be_read_alone() -> None:
    blob = TensorCodec().encode(torch.zeros(3), b"a note").to_tensor()
    assert bytes(note_of(memory_of(blob))) == b"a note"


def test_leaves_of_odd_kinds_are_pickled() -> None:
    sparse = torch.eye(3).to_sparse()
    tree = {"sparse": sparse, "size": torch.Size([2, 3]), "dtype": torch.int8, "many": defaultdict(list, a=[1])}
    found = there_and_back(tree)
    assert torch.equal(found.pop("sparse").to_dense(), torch.eye(3))
    del tree["sparse"]
    assert found == tree and type(found["size"]) is torch.Size and type(found["many"]) is defaultdict


def test_large_leaves_of_odd_kinds_come_whole() -> None:
    found = there_and_back([defaultdict(None, a=torch.arange(10_000))])
    assert torch.equal(found[0]["a"], torch.arange(10_000))


def test_classes_of_the_senders_script_go_along(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point(NamedTuple):
        x: Any

    Point.__module__, Point.__qualname__ = "__main__", "Point"
    monkeypatch.setattr(sys.modules["__main__"], "Point", Point, raising=False)
    blob = TensorCodec().encode((Point(torch.ones(2)), defaultdict(None, at=Point(3)))).to_tensor()

    def decode_elsewhere() -> None:
        MainNamespace(MainFacts())  # where Point is not known
        point, table = TensorCodec().decode(memory_of(blob))
        assert type(point) is type(table["at"]) is sys.modules["__main__"].__dict__["Point"]
        assert torch.equal(point.x, torch.ones(2)) and table["at"].x == 3

    with ForkedProcess(decode_elsewhere) as child:
        child.wait_until_done()


def test_what_cannot_be_sent_is_named() -> None:
    with pytest.raises(NotPicklable, match="lock"):
        TensorCodec().encode((torch.zeros(2), threading.Lock()))


def test_tensors_go_to_the_device_that_is_asked_for() -> None:
    blob = TensorCodec().encode(torch.zeros(2, 3, requires_grad=True)).to_tensor()
    found = TensorCodec(torch.device("meta")).decode(memory_of(blob))
    assert found.is_meta and found.requires_grad and found.is_leaf
