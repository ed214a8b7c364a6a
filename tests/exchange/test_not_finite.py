"""NaN and infinity: found by parameter, and one verdict for all members."""

import math
import pickle

import pytest
import torch

from ropewalk.errors import ExchangeInvalid, GradientNotFinite
from ropewalk.exchange.buckets import BucketEntry, Layout
from ropewalk.exchange.not_finite import check_policy, is_finite, screen, verdict

LAYOUT = Layout((BucketEntry("fc.weight", (2, 2)), BucketEntry("fc.bias", (2,)), BucketEntry("scale", ())))


def test_parameters_with_nan_or_infinity_are_named() -> None:
    flat = torch.arange(7.0)
    assert screen("raise", LAYOUT, flat) == ()
    flat[1], flat[6] = math.nan, -math.inf
    assert screen("raise", LAYOUT, flat) == ("fc.weight", "scale")
    assert math.isnan(flat[1]), "only the policy zero changes anything"


def test_zero_repairs_only_what_is_not_finite() -> None:
    flat = torch.tensor([1.0, math.nan, math.inf, -math.inf, 5.0, 6.0, 7.0])
    assert screen("zero", LAYOUT, flat) == ("fc.weight",)
    assert flat.tolist() == [1.0, 0.0, 0.0, 0.0, 5.0, 6.0, 7.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_sum_that_overflows_is_no_infinity(dtype: torch.dtype) -> None:
    assert is_finite(torch.full((64,), torch.finfo(dtype).max, dtype=dtype))
    assert not is_finite(torch.tensor([math.inf, -math.inf], dtype=dtype))


def test_nothing_found_is_no_verdict() -> None:
    assert verdict("raise", 3, {}) is None
    assert verdict("raise", 3, {0: (), 1: ()}) is None


def test_raise_names_ranks_and_parameters_and_the_error_survives_pickling() -> None:
    with pytest.raises(GradientNotFinite, match=r"step 3 .*: rank 0 in a; rank 2 in b, c") as raised:
        verdict("raise", 3, {2: ("b", "c"), 1: (), 0: ("a",)})
    again = pickle.loads(pickle.dumps(raised.value))
    assert (again.ranks, again.parameters, again.step) == ((0, 2), ("a", "b", "c"), 3)


def test_each_policy_has_its_verdict() -> None:
    found = {1: ("a",)}
    skipped = verdict("skip", 7, found)
    assert skipped is not None and skipped.skips and skipped.fill == 0.0
    assert skipped.note == "step 7 was skipped: NaN or infinity: rank 1 in a"
    repaired = verdict("zero", 7, found)
    assert repaired is not None and repaired.goes_on and not repaired.skips
    passed = verdict("pass", 7, found)
    assert passed is not None and math.isnan(passed.fill) and not passed.skips


@pytest.mark.parametrize("policy", ["raise", "skip", "pass"])
def test_a_grad_scaler_is_shown_the_infinity(policy) -> None:
    seen = verdict(policy, 0, {0: ("a",)}, scaled=True)
    assert seen is not None and math.isnan(seen.fill) and not seen.skips


def test_an_unknown_policy_is_answered_with_all() -> None:
    with pytest.raises(ExchangeInvalid, match=r"nan='ignore' .* raise, skip, zero, pass"):
        check_policy("ignore")
    assert check_policy("skip") == "skip"
