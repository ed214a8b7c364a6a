"""Messages round trip, are as long as they say, and never harm who reads what nobody wrote."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import ExchangeInvalid, MessageCorrupt
from ropewalk.exchange.buckets import BucketEntry, Layout
from ropewalk.exchange.wire import INDEX_CODINGS
from ropewalk.exchange.wire.sparse import pack_dense, pack_sparse, unpack_sparse
from ropewalk.exchange.wire.values import Levels, ValueCodec, value_codec

CODECS: list[str | ValueCodec] = ["same", "float64", "float16", "bfloat16", "levels(1)", Levels(20, group=0, norm="l2")]


def layout(*sizes: int) -> Layout:
    return Layout(tuple(BucketEntry(f"p{at}", (size,)) for at, size in enumerate(sizes)))


@st.composite
def components(draw: st.DrawFn) -> tuple[int, np.ndarray]:
    """A number of components and some of them: from one to all, evenly spread or in runs, beyond a block or not."""
    numel = draw(st.sampled_from([1, 2, 7, 8, 9, 100, 650, 65_535, 65_536, 65_537, 200_000]))
    density = draw(st.sampled_from([0.0001, 0.01, 0.1, 0.3, 0.6, 1.0]))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    if draw(st.booleans()):
        chosen = np.flatnonzero(rng.random(numel) < density)
    else:
        start = int(rng.integers(0, numel))
        chosen = np.arange(start, min(numel, start + 1 + int(density * numel)))
    return numel, chosen if chosen.size else np.array([numel - 1])


@settings(deadline=None, max_examples=40)
@given(components(), st.sampled_from(sorted(INDEX_CODINGS)))
def test_every_coding_of_indices_gives_them_back_and_knows_its_size(some: tuple[int, np.ndarray], kind: int) -> None:
    numel, chosen = some
    indices = chosen.astype(np.int32)
    coding = INDEX_CODINGS[kind]
    planned = coding.plan(indices, numel)
    written = planned.write()
    assert written.dtype == np.uint8 and written.size == planned.size_bytes
    read = coding.decode(written, indices.size, numel)
    assert read.dtype == np.int32 and read.tolist() == indices.tolist()


@settings(deadline=None, max_examples=40)
@given(components(), st.sampled_from(CODECS), st.booleans())
def test_what_is_unpacked_is_what_the_codec_says_is_heard(
    some: tuple[int, np.ndarray], codec: str | ValueCodec, is_double: bool
) -> None:
    numel, indices = some
    bucket = layout(numel)
    rng = np.random.default_rng(numel)
    values = rng.standard_normal(indices.size).astype(np.float64 if is_double else np.float32)
    message = pack_sparse(bucket, indices, values, codec, seed=(3, 1))
    assert message.data.dtype == np.uint8 and message.bits == 8 * message.data.size
    assert message.num_values == indices.size
    dtype = torch.float64 if is_double else torch.float32
    found = unpack_sparse(message.data.data, numel, dtype)
    assert found.indices.tolist() == indices.tolist()
    heard = value_codec(codec, values.dtype).heard(values, (3, 1))
    assert found.values.dtype == values.dtype and found.values.tobytes() == heard.tobytes()
    if codec == "same":
        assert heard.tobytes() == values.tobytes()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 1000), st.sampled_from(CODECS))
def test_the_bytes_of_a_message_are_divided_among_its_parameters(
    sizes: list[int], seed: int, codec: str | ValueCodec
) -> None:
    bucket = layout(*sizes)
    rng = np.random.default_rng(seed)
    indices = np.flatnonzero(rng.random(bucket.numel) < rng.random())
    message = pack_sparse(bucket, indices, rng.standard_normal(indices.size), codec)
    assert sum(message.layers.values()) == message.data.size
    counts = {
        name: int(((part.start <= indices) & (indices < part.stop)).sum()) for name, part in bucket.slices.items()
    }
    assert set(message.layers) == {name for name, count in counts.items() if count}
    if codec == "same":
        assert all(size >= 8 * counts[name] for name, size in message.layers.items())


def test_who_has_nothing_to_say_sends_nothing() -> None:
    message = pack_sparse(layout(10), np.empty(0, np.int64), np.empty(0, np.float32))
    assert message.bits == 0 and message.layers == {} and message.num_values == 0
    indices, values = unpack_sparse(message.data.data, 10, torch.float64)
    assert indices.size == 0 and values.dtype == np.float64
    assert unpack_sparse(b"", 3)[0].size == 0


def test_the_smallest_coding_is_taken() -> None:
    numel = 300_000
    rng = np.random.default_rng(0)
    for density in (0.0001, 0.001, 0.01, 0.1, 0.3, 0.45):
        indices = np.flatnonzero(rng.random(numel) < density).astype(np.int32)
        message = pack_sparse(layout(numel), indices, np.ones(indices.size, np.float32))
        sizes = {kind: coding.plan(indices, numel).write().size for kind, coding in INDEX_CODINGS.items()}
        assert sizes[int(message.data[0])] == min(sizes.values())


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
def test_indices_of_a_random_support_take_at_most_4_percent_more_than_their_entropy(density: float) -> None:
    numel = 1_000_000
    indices = np.flatnonzero(np.random.default_rng(1).random(numel) < density).astype(np.int32)
    p = indices.size / numel
    entropy = -(p * np.log2(p) + (1 - p) * np.log2(1 - p)) * numel
    smallest = min(coding.plan(indices, numel).size_bytes for coding in INDEX_CODINGS.values())
    assert 8 * smallest <= 1.04 * entropy


def test_a_dense_message_has_no_indices() -> None:
    bucket = layout(5, 995)
    values = np.arange(1000, dtype=np.float32)
    message = pack_dense(bucket, values)
    assert message.data.size <= 4000 + 4
    assert message.layers["p1"] == 4 * 995
    indices, read = unpack_sparse(message.data.data, 1000)
    np.testing.assert_array_equal(indices, np.arange(1000))
    np.testing.assert_array_equal(read, values)
    assert pack_sparse(bucket, np.arange(1000), values).data.tobytes() == message.data.tobytes()


@pytest.mark.parametrize("indices", [[3, 2], [2, 2], [-1, 2], [0, 10]])
def test_indices_that_cannot_be_are_refused(indices: list[int]) -> None:
    with pytest.raises(ValueError, match="ascend within the 10 components"):
        pack_sparse(layout(10), np.array(indices), np.ones(2))


def test_values_without_indices_are_refused() -> None:
    with pytest.raises(ValueError, match="2 indices cannot have 3 values"):
        pack_sparse(layout(10), np.array([1, 2]), np.ones(3))
    with pytest.raises(ValueError, match="10 components, not 3"):
        pack_dense(layout(10), np.ones(3))
    with pytest.raises(ExchangeInvalid, match="2147483648"):
        pack_sparse(layout(1 << 31), np.array([1]), np.ones(1))


@settings(deadline=None, max_examples=100)
@given(components(), st.sampled_from(CODECS), st.data())
def test_changed_bytes_are_refused_or_read_as_something_within_the_bucket(
    some: tuple[int, np.ndarray], codec: str | ValueCodec, data: st.DataObject
) -> None:
    numel, indices = some
    good = pack_sparse(layout(numel), indices, np.ones(indices.size, np.float32), codec).data
    changed = good.copy()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, min(good.size - 1, 40)) | st.integers(0, good.size - 1))
        changed[at] = data.draw(st.integers(0, 255))
    cut = changed[: data.draw(st.just(good.size) | st.integers(0, good.size))]
    readable(cut, numel)


@settings(deadline=None, max_examples=100)
@given(st.binary(min_size=1, max_size=60), st.sampled_from([1, 9, 650, 70_000, (1 << 31) - 1]), st.integers(0, 5))
def test_bytes_of_nobody_are_refused_or_read_as_something_within_the_bucket(tail: bytes, numel: int, kind: int) -> None:
    readable(np.frombuffer(bytes([kind]) + tail, np.uint8), numel)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(sorted(INDEX_CODINGS)), st.sampled_from([3, 20, 1000, 65_540]), st.data())
def test_no_coding_reads_changed_bytes_as_indices_that_cannot_be(kind: int, numel: int, data: st.DataObject) -> None:
    coding = INDEX_CODINGS[kind]
    indices = np.array(sorted(data.draw(st.sets(st.integers(0, numel - 1), min_size=1, max_size=9))), np.int32)
    changed = coding.plan(indices, numel).write().copy()
    for _ in range(2):
        at = data.draw(st.integers(0, changed.size - 1))
        changed[at] = data.draw(st.integers(0, 255) | st.sampled_from(changed[: at + 1].tolist()))
    try:
        read = coding.decode(changed, indices.size, numel)
    except ValueError:
        return
    assert read.size == indices.size and read[0] >= 0 and read[-1] < numel and (np.diff(read) > 0).all()


@pytest.mark.parametrize(
    ("kind", "data", "count"),
    [(1, [1, 0, 1, 0], 2), (1, [2, 0, 1, 0], 2), (1, [3, 0], 1), (2, [0b1000], 1), (3, [1, 1, 2], 1)],
    ids=["the same twice", "descending", "too large", "a bit beyond the last", "a gap beyond the last"],
)
def test_indices_that_cannot_be_are_not_read(kind: int, data: list[int], count: int) -> None:
    with pytest.raises(ValueError):
        INDEX_CODINGS[kind].decode(np.array(data, np.uint8), count, 3)


def readable(data: np.ndarray, numel: int) -> None:
    try:
        indices, values = unpack_sparse(data.data, numel)
    except MessageCorrupt:
        return
    assert indices.size == values.size <= 8 * data.size
    assert indices.size == 0 or (indices[0] >= 0 and indices[-1] < numel and (np.diff(indices) > 0).all())


def test_a_message_of_a_larger_bucket_is_refused() -> None:
    message = pack_sparse(layout(1000), np.array([3, 500, 999]), np.ones(3, np.float32))
    with pytest.raises(MessageCorrupt, match="bucket with 998 components"):
        unpack_sparse(message.data.data, 998)


def test_a_message_that_boasts_of_many_components_is_refused_before_they_have_memory() -> None:
    boasts = np.frombuffer(bytes([3, 1, 0xFF, 0xFF, 0xFF, 0xFF, 0x07, 0, 0]), np.uint8)
    with pytest.raises(MessageCorrupt, match="2147483647 values take 8589934588 bytes"):
        unpack_sparse(boasts, (1 << 31) - 1)


@pytest.mark.parametrize("data", [[2, 1, 0, 0], [3, 1, 0, 0], [0, 1, 0], [9, 1, 1, 0, 0, 0, 0, 0], [1, 9, 1, 0, 0]])
def test_headers_that_nobody_writes_are_refused(data: list[int]) -> None:
    with pytest.raises(MessageCorrupt, match=r"count|components|kind|codec"):
        unpack_sparse(bytes(data), 8)
