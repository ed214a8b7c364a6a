"""DDP models whose gradients travel through an exchange: three real processes over gloo, started once for all cases."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.exchange import ddp_cases
from tests.exchange.processes import Failed, run_cases

pytestmark = pytest.mark.timeout(180)

CASES = ["dense_and_plain", "rebuilt_buckets", "accumulated", "unused", "not_finite", "scaled", "joined", "saved_and_loaded", "detached", "digits", "killed"]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each case returned, by rank."""
    return run_cases(ddp_cases.__name__, CASES, 3, tmp_path_factory.mktemp("ranks"))


def of(answers: dict[str, list[Any]], case: str, ranks: int = 3) -> list[Any]:
    found = answers[case][:ranks]
    for rank, answer in enumerate(found):
        assert not isinstance(answer, Failed), f"rank {rank}: {answer}"
    return found


def same(first: Any, second: Any) -> bool:
    """Whether nested lists and dictionaries of tensors hold the same bits."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


def test_whole_gradients_through_the_hook_have_the_bits_that_ddp_computes(answers: dict[str, list[Any]]) -> None:
    for ways in of(answers, "dense_and_plain"):
        for way, (hooked, plain) in ways.items():
            assert same(hooked, plain), way
        assert len(ways) == 4


def test_state_goes_on_exactly_when_ddp_makes_other_buckets(answers: dict[str, list[Any]]) -> None:
    for indices, (by_hook, by_hand), (state, state_by_hand) in of(answers, "rebuilt_buckets"):
        assert indices[0] != indices[1] == indices[-1]
        assert len(indices[1]) > 2
        assert same(by_hook, by_hand)
        assert same(state, state_by_hand)
        assert any(error.any() for error in state["encoder.error"].values())


def test_gradients_that_are_accumulated_are_exchanged_once(answers: dict[str, list[Any]]) -> None:
    for plain, hooked, steps in of(answers, "accumulated"):
        assert same(plain, hooked)
        assert steps == 3


def test_parameters_that_ranks_do_not_use_get_what_the_others_found(answers: dict[str, list[Any]]) -> None:
    for plain, hooked, sparse in of(answers, "unused"):
        assert (
            [grad is None for grad in plain] == [grad is None for grad in hooked] == [grad is None for grad in sparse]
        )
        assert same([grad for grad in plain if grad is not None], [grad for grad in hooked if grad is not None])
        assert plain[-1] is None
    first, second, _ = (answer[2] for answer in of(answers, "unused"))
    assert same(first[:-2], second[:-2])


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_nan_on_one_rank_is_seen_by_all(answers: dict[str, list[Any]], kind: str) -> None:
    for found in of(answers, "not_finite"):
        held, skipped, _, _, later = found[kind, "pass"]
        assert any(grad.isnan().any() for grad in held)
        assert not skipped
        assert all(grad.isfinite().all() for grad in later)

        held, skipped, notes, _, later = found[kind, "skip"]
        assert not any(grad.any() for grad in held)
        assert skipped
        assert notes == ("step 1 was skipped: NaN or infinity: rank 1 in 2.weight",)

        held, skipped, notes, _, later = found[kind, "zero"]
        assert all(grad.isfinite().all() for grad in held) and any(grad.any() for grad in held)
        assert notes == ("step 1: NaN or infinity counted as 0: rank 1 in 2.weight",)

        raised, error = found[kind, "raise"]
        assert "gradients of step 1 are NaN or infinite: rank 1 in 2.weight" in raised
        assert error == "GradientNotFinite"


def test_nan_never_enters_the_state_of_a_compressor(answers: dict[str, list[Any]]) -> None:
    for found in of(answers, "not_finite"):
        for nan in ("pass", "skip"):
            before, after = found["sparse", nan][3]
            assert same(before, after), nan


def test_state_is_kept_without_the_scale_of_a_grad_scaler(answers: dict[str, list[Any]]) -> None:
    for plain, scaled, after_infinity, scale in of(answers, "scaled"):
        assert same(plain, scaled)
        assert same(scaled, after_infinity), "a step that the scaler leaves out must change nothing"
        assert scale == 512.0


def test_ranks_that_have_joined_take_part_with_zeros(answers: dict[str, list[Any]]) -> None:
    for (plain, hooked, _), steps in of(answers, "joined"):
        assert same(plain, hooked)
        assert steps == 4
    first, second, third = (answer[0][2] for answer in of(answers, "joined"))
    assert same(first, second) and same(second, third)


def test_training_goes_on_exactly_from_a_saved_state(answers: dict[str, list[Any]]) -> None:
    for at_once, in_two, step in of(answers, "saved_and_loaded"):
        assert same(at_once, in_two)
        assert step == 6


def test_a_model_whose_exchange_was_detached_averages_as_ddp_does(answers: dict[str, list[Any]]) -> None:
    for plain, off, again, refused in of(answers, "detached"):
        assert same(plain, off)
        assert not same(plain, again)
        assert "detach() that one first" in refused


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_gd_sec_ends_within_one_percent_of_dense_accuracy(answers: dict[str, list[Any]], optimizer: str) -> None:
    for found in of(answers, "digits"):
        dense, _ = found[optimizer, "AllReduce"]
        sparse, share = found[optimizer, "AllGather"]
        assert dense > 0.94
        assert sparse > dense - 0.01
        assert share < 0.5


def test_a_rank_that_dies_ends_the_backward_of_the_others(answers: dict[str, list[Any]]) -> None:
    for raised, error in of(answers, "killed", ranks=2):
        assert error == "MemberLost"
        assert "was lost in all_gather" in raised
