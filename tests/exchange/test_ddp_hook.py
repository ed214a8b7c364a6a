"""DDP models whose gradients travel through an exchange: three real processes over gloo, started once for all cases."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.exchange import ddp_cases as cases
from tests.exchange.torch_members import TorchLeader, TorchMembers

#: Gives what a case returned, by rank; each case runs once.
Answers = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory, torch_leader: TorchLeader) -> Iterator[TorchMembers]:
    with TorchMembers(3, tmp_path_factory.mktemp("ranks"), torch_leader) as members:
        yield members


@pytest.fixture(scope="module")
def answers(members: TorchMembers) -> Answers:
    return functools.cache(members.run)


def same(first: Any, second: Any) -> bool:
    """Whether nested lists and dictionaries of tensors hold the same bits."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


def test_whole_gradients_through_the_hook_have_the_bits_that_ddp_computes(answers: Answers) -> None:
    for ways in answers(cases.dense_and_plain):
        for way, (hooked, plain) in ways.items():
            assert same(hooked, plain), way
        assert len(ways) == 4


def test_state_goes_on_exactly_when_ddp_makes_other_buckets(answers: Answers) -> None:
    for indices, (by_hook, by_hand), (state, state_by_hand) in answers(cases.rebuilt_buckets):
        assert indices[0] != indices[1] == indices[-1]
        assert len(indices[1]) > 2
        assert same(by_hook, by_hand)
        assert same(state, state_by_hand)
        assert any(error.any() for error in state["encoder.error"].values())


def test_gradients_that_are_accumulated_are_exchanged_once(answers: Answers) -> None:
    for plain, hooked, steps in answers(cases.accumulated):
        assert same(plain, hooked)
        assert steps == 3


def test_parameters_that_ranks_do_not_use_get_what_the_others_found(answers: Answers) -> None:
    for plain, hooked, sparse in answers(cases.unused):
        assert (
            [grad is None for grad in plain] == [grad is None for grad in hooked] == [grad is None for grad in sparse]
        )
        assert same([grad for grad in plain if grad is not None], [grad for grad in hooked if grad is not None])
        assert plain[-1] is None
    first, second, _ = (answer[2] for answer in answers(cases.unused))
    assert same(first[:-2], second[:-2])


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_nan_on_one_rank_is_seen_by_all(answers: Answers, kind: str) -> None:
    for found in answers(cases.not_finite):
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

        raised, error, (before, after), later = found[kind, "raise"]
        assert same(before, after), "the state could not be taken: step 1 was open, and a hook has no abort"
        assert "gradients of step 1 are NaN or infinite: rank 1 in 2.weight" in raised
        assert error == "GradientNotFinite"
        assert all(grad.isfinite().all() for grad in later)


def test_nan_never_enters_the_state_of_a_compressor(answers: Answers) -> None:
    for found in answers(cases.not_finite):
        for nan in ("pass", "skip"):
            before, after = found["sparse", nan][3]
            assert same(before, after), nan


def test_state_is_kept_without_the_scale_of_a_grad_scaler(answers: Answers) -> None:
    for plain, scaled, after_infinity, scale in answers(cases.scaled):
        assert same(plain, scaled)
        assert same(scaled, after_infinity), "a step that the scaler leaves out must change nothing"
        assert scale == 512.0


def test_ranks_that_have_joined_take_part_with_zeros(answers: Answers) -> None:
    for (plain, hooked, _), steps in answers(cases.joined):
        assert same(plain, hooked)
        assert steps == 4
    first, second, third = (answer[0][2] for answer in answers(cases.joined))
    assert same(first, second) and same(second, third)


def test_training_goes_on_exactly_from_a_saved_state(answers: Answers) -> None:
    for at_once, in_two, step in answers(cases.saved_and_loaded):
        assert same(at_once, in_two)
        assert step == 6


def test_a_model_whose_exchange_was_detached_averages_as_ddp_does(answers: Answers) -> None:
    for plain, off, again, refused in answers(cases.detached):
        assert same(plain, off)
        assert not same(plain, again)
        assert "detach() that one first" in refused


def test_a_model_with_sparse_gradients_is_refused(answers: Answers) -> None:
    # The hook got sparse tensors from DDP, and the backward failed: "can't convert Sparse layout tensor to numpy".
    for refused, goes in answers(cases.sparse_embedding):
        assert "the Embedding '0' makes sparse gradients" in refused and "sparse=False" in refused
        assert goes


@pytest.mark.soak  # trains to an accuracy; the tests before it compare bits
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_gd_sec_ends_within_one_percent_of_dense_accuracy(answers: Answers, optimizer: str) -> None:
    for found in answers(cases.digits, optimizer):
        dense, _ = found["AllReduce"]
        sparse, share = found["AllGather"]
        assert dense > 0.94
        assert sparse > dense - 0.01
        assert share < 0.5


def test_a_rank_that_dies_ends_the_backward_of_the_others(members: TorchMembers, tmp_path: Path) -> None:
    # The last test, because it takes one of the members.
    with pytest.raises(EOFError):
        members.run(cases.killed, tmp_path)
    for rank in (0, 1):
        kind, raised = (tmp_path / f"raised-{rank}").read_text().split("\n", 1)
        assert kind == "MemberLost"
        assert "was lost in all_gather" in raised
