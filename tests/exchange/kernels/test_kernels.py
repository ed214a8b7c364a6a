"""Every backend of the kernels against the formula, written plainly."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.exchange import kernels
from ropewalk.exchange.kernels import numpy_bits, numpy_kernels
from ropewalk.exchange.kernels.selection import Rule, Selection

HAS_NUMBA = importlib.util.find_spec("numba") is not None
needs_numba = pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed: pip install 'ropewalk[exchange]'")

#: Around the sizes at which blocks, words and chunks of the backends end.
SIZES = (1, 7, 8, 9, 63, 4095, 4096, 4097, 65_535, 65_537, (1 << 18) + 3)


def numbers(seed: int, size: int, dtype: type = np.float32, special: bool = True) -> np.ndarray:
    rng = np.random.default_rng(seed)
    made = rng.standard_normal(size).astype(dtype)
    if special:
        for value in (np.nan, np.inf, -np.inf, 0.0, -0.0):
            made[rng.integers(0, size, 1 + size // 50)] = value
    return made


def plainly(x: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Whether each component is sent: NaN always, and what lies above its limit."""
    return np.isnan(x) | np.isnan(limit) | (np.abs(x) > limit)


def same(found: Selection, at: np.ndarray, x: np.ndarray) -> None:
    assert found.indices.dtype == np.int32 and found.values.dtype == x.dtype
    np.testing.assert_array_equal(found.indices, np.flatnonzero(at))
    same_bits(found.values, x[at])


def same_bits(some: np.ndarray, others: np.ndarray) -> None:
    """Whatever bits a NaN has: its sign is the processor's business."""
    np.testing.assert_array_equal(some, others)
    np.testing.assert_array_equal(np.signbit(some[some == 0]), np.signbit(others[others == 0]))


@pytest.fixture(params=["numpy", pytest.param("numba", marks=needs_numba), "torch"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The public functions with one backend for whatever tensors come."""
    chosen = {
        "numpy": lambda _: numpy_kernels,
        "numba": lambda _: kernels._compiled("numba_kernels"),
        "torch": lambda _: None,
    }[request.param]
    monkeypatch.setattr(kernels, "_kernels", chosen)
    return request.param


# Compiled once more for float64, which takes a second and a half.
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.soak)])
def test_what_is_above_the_threshold_is_sent_and_the_rest_is_the_new_error(backend: str, dtype: type) -> None:
    for seed, size in enumerate(SIZES):
        g, h, e, reference = (numbers(10 * seed + i, size, dtype) for i in range(4))
        with np.errstate(invalid="ignore"):
            difference = g - h + e
        sent = plainly(difference, np.abs(reference) * dtype(1.5))
        new_error = np.full(size, 7, dtype)
        gradient, memory, error, limits = (torch.from_numpy(each) for each in (g, h, e, reference))
        found = kernels.gd_sec_select(gradient, memory, error, limits, 1.5, torch.from_numpy(new_error))
        same(found, sent, difference)
        same_bits(new_error[~sent], difference[~sent])
        same_bits(new_error[sent], np.zeros(int(sent.sum()), dtype))


@pytest.mark.parametrize("has_memory", [False, True])
@pytest.mark.parametrize("has_error", [False, True])
@pytest.mark.parametrize("rule", ["reference", "number", "factors", "both", "none"])
def test_memory_error_and_reference_may_be_missing(backend: str, has_memory: bool, has_error: bool, rule: str) -> None:
    size = 5001
    g, h, e, reference, factors = (numbers(i, size, special=False) for i in range(5))
    g[:100] = h[:100] = e[:100] = 0
    memory, error = h if has_memory else np.zeros_like(h), e if has_error else np.zeros_like(e)
    factors = np.abs(factors)
    difference = g - memory + error
    given_reference, given_factor, limit = {
        "reference": (torch.from_numpy(reference), 2.0, np.abs(reference) * np.float32(2)),
        "number": (-0.5, 2.0, np.full(size, 1, np.float32)),
        "factors": (0.5, torch.from_numpy(factors), factors * np.float32(0.5)),
        "both": (torch.from_numpy(reference), torch.from_numpy(factors), np.abs(reference) * factors),
        "none": (None, 2.0, np.zeros(size, np.float32)),
    }[rule]
    new_error = torch.empty(size)
    found = kernels.gd_sec_select(
        torch.from_numpy(g),
        torch.from_numpy(h) if has_memory else None,
        torch.from_numpy(e) if has_error else None,
        given_reference,
        given_factor,
        new_error,
    )
    sent = np.abs(difference) > limit
    same(found, sent, difference)
    np.testing.assert_array_equal(new_error.numpy(), np.where(sent, 0, difference))
    if rule == "none":
        assert found.indices[0] >= 100


def test_a_threshold_selects_by_magnitude(backend: str) -> None:
    x = numbers(3, 10_001)
    same(kernels.select_above(torch.from_numpy(x), 0.7), plainly(x, np.full(x.size, np.float32(0.7))), x)
    limits = np.abs(numbers(4, x.size, special=False))
    same(kernels.select_above(torch.from_numpy(x), torch.from_numpy(limits)), plainly(x, limits), x)
    for size, threshold in ((9, 0.0), (9, 1e300), (0, 1.0)):
        nothing = kernels.select_above(torch.zeros(size), threshold)
        assert nothing.indices.size == 0 and nothing.values.dtype == np.float32


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_values_are_added_where_they_belong(backend: str, scale: float) -> None:
    out = numbers(5, 20_000, special=False)
    at = np.flatnonzero(np.random.default_rng(6).random(out.size) < 0.1).astype(np.int32)
    values = numbers(7, at.size, special=False)
    right = out.copy()
    right[at] += values * np.float32(scale)
    kernels.scatter_add(torch.from_numpy(out), at, values, scale)
    assert out.tobytes() == right.tobytes()
    kernels.scatter_add(torch.from_numpy(out), at[:0], values[:0], scale)
    assert out.tobytes() == right.tobytes()


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 300), st.integers(0, 1000), st.sampled_from([0.0, 0.3, 1.0, 3.0, 1e9]))
def test_what_is_sent_and_what_is_kept_is_the_difference(size: int, seed: int, factor: float) -> None:
    g, h, e, reference = (torch.from_numpy(numbers(seed + i, size, special=False)) for i in range(4))
    new_error = torch.empty(size)
    indices, values = kernels.gd_sec_select(g, h, e, reference, factor, new_error)
    kernels.scatter_add(new_error, indices, values)
    assert torch.equal(new_error, g - h + e)


def test_a_gradient_of_16_bits_meets_state_of_32() -> None:
    g = torch.randn(100, generator=torch.Generator().manual_seed(0)).bfloat16()
    new_error = torch.empty(100)
    found = kernels.gd_sec_select(g, torch.zeros(100), torch.zeros(100), None, 1.0, new_error)
    assert found.values.tobytes() == g.float().numpy().tobytes()
    assert not new_error.any()


def test_vectors_of_16_bits_are_handled_by_torch() -> None:
    x = torch.tensor([0.0, -2.0, 0.5, 3.0], dtype=torch.bfloat16)
    found = kernels.select_above(x, 1.0)
    assert found.indices.tolist() == [1, 3] and found.values.dtype == np.float32
    kernels.scatter_add(x, *found, -1.0)
    assert x.tolist() == [0, 0, 0.5, 0]


@needs_numba
def test_only_large_vectors_are_worth_compiled_code() -> None:
    def name(size: int) -> str:
        return kernels._kernels(torch.empty(1).expand(size)).__name__.rpartition(".")[2]

    assert name(kernels.COMPILED_FROM - 1) == "numpy_kernels"
    assert name(kernels.COMPILED_FROM) == "numba_kernels"


def test_without_numba_there_is_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"no {name}")

    monkeypatch.setattr(kernels.importlib, "import_module", missing)
    monkeypatch.setattr(kernels, "_compiled", functools.cache(kernels._compiled.__wrapped__))
    assert kernels._kernels(torch.empty(1).expand(1 << 30)) is numpy_kernels
    assert kernels.bit_kernels(1 << 30) is numpy_bits


def test_a_rule_of_arrays_and_one_of_tensors_are_read_the_same() -> None:
    x = numbers(1, 1000)
    base = numbers(2, 1000)
    arrays = numpy_kernels.select(x, Rule(base, 2.0))
    tensors = kernels.torch_kernels.select(torch.from_numpy(x), (torch.from_numpy(base), 2.0))
    assert [each.tobytes() for each in arrays] == [each.tobytes() for each in tensors]
