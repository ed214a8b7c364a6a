"""The identities of GD-SEC (gd_sec.py says which), over random gradients and random options."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ropewalk.errors import ExchangeInvalid, MessageCorrupt
from ropewalk.exchange.buckets import BucketEntry, Layout
from ropewalk.exchange.compressors.compressor import Round
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.compressors.gd_sec_options import Per
from ropewalk.exchange.wire.sparse import pack_sparse
from tests.exchange.compressors.gd_sec_fleet import Fleet, Quadratics, at_rest, layout_of, total

NUMEL = layout_of().numel
few = settings(max_examples=25, deadline=None)

#: Inside and outside of what trains well: the identities do not care.
betas = st.sampled_from([0.0, 0.01, 0.3, 1.0])
thresholds = st.sampled_from([0.0, 0.3, 1.0, 10.0])


@st.composite
def compressors(draw: st.DrawFn, **fixed: Any) -> GDSEC:
    options: dict[str, Any] = {
        "c": draw(thresholds),
        "beta": draw(betas),
        "per": draw(st.sampled_from(["component", "component", "layer", "bucket"])),
        "values": draw(st.sampled_from(["same", "same", "bfloat16", "levels(3)"])),
        "on_unstable": "clamp",
    }
    return GDSEC(**options | fixed)


def gradients_of(seed: int, size: int, num_rounds: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """(num_rounds, size, NUMEL): drift and noise of very different sizes, and components that are always zero."""
    made = torch.Generator().manual_seed(seed)
    scales = torch.logspace(0, -4, NUMEL, dtype=torch.float64)[torch.randperm(NUMEL, generator=made)]
    scales[torch.randint(NUMEL, (3,), generator=made)] = 0
    drift = torch.randn(size, NUMEL, generator=made, dtype=torch.float64)
    noise = torch.randn(num_rounds, size, NUMEL, generator=made, dtype=torch.float64)
    return ((drift + noise) * scales).to(dtype)


runs = st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 6))


def assert_close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@few
@given(run=runs, beta=betas, form=st.sampled_from(["c", "xi"]))
def test_without_a_threshold_it_is_gradient_descent(run: tuple[int, int, int], beta: float, form: str) -> None:
    seed, size, num_rounds = run
    compressor = GDSEC(c=0, beta=beta) if form == "c" else GDSEC(xi=0, beta=beta)
    fleet = Fleet(compressor, size)
    for gradients in gradients_of(seed, size, num_rounds):
        assert_close(fleet.exchange(list(gradients)), gradients.sum(0))
        assert not total(fleet.errors).any()


@few
@given(run=runs, compressor=compressors(), data=st.data())
def test_what_is_applied_is_the_gradient_and_the_change_of_the_error(
    run: tuple[int, int, int], compressor: GDSEC, data: st.DataObject
) -> None:
    """Equation `ghat^k = grad f(theta^k) + e^k - e^{k+1}`, also with silent members, by turns, and all said."""
    seed, size, num_rounds = run
    speakers = data.draw(st.sampled_from([None, 1, 2]))
    fleet = Fleet(replace(compressor, speakers=speakers), size)
    applied, wanted = torch.zeros(2, NUMEL, dtype=torch.float64)
    for gradients in gradients_of(seed, size, num_rounds):
        before = total(fleet.errors)
        if data.draw(st.booleans()):
            ghat = fleet.exchange_whole(list(gradients))
        else:
            silent = data.draw(st.frozensets(st.integers(0, size - 1)))
            ghat = fleet.exchange(list(gradients), silent)
        assert_close(ghat, gradients.sum(0) + before - total(fleet.errors))
        applied, wanted = applied + ghat, wanted + gradients.sum(0)
    # Nothing is lost, only delayed.
    assert_close(applied, wanted - total(fleet.errors))


@few
@given(run=runs, compressor=compressors(), data=st.data())
def test_who_does_not_compute_is_applied_by_its_memory(
    run: tuple[int, int, int], compressor: GDSEC, data: st.DataObject
) -> None:
    seed, size, num_rounds = run
    fleet = Fleet(at_rest(compressor), size)
    for gradients in gradients_of(seed, size, num_rounds):
        resting = data.draw(st.frozensets(st.integers(0, size - 1)))
        before, memories = fleet.errors, fleet.memories
        before = [error.clone() for error in before]
        terms = [memories[rank].clone() if rank in resting else gradients[rank] for rank in range(size)]
        ghat = fleet.exchange(list(gradients), resting)
        assert_close(ghat, total(terms) + total(before) - total(fleet.errors))
        for rank in resting:
            assert torch.equal(fleet.errors[rank], before[rank])
            assert not len(fleet.messages[rank].data)


@few
@given(run=runs, c=thresholds, beta=betas)
def test_the_error_of_a_component_is_within_its_threshold(run: tuple[int, int, int], c: float, beta: float) -> None:
    seed, size, num_rounds = run
    fleet = Fleet(GDSEC(c=c, beta=beta, on_unstable="clamp"), size)
    for gradients in gradients_of(seed, size, num_rounds):
        reference = torch.zeros(NUMEL, dtype=torch.float64) if fleet.applied is None else fleet.applied.abs()
        fleet.exchange(list(gradients))
        for error in fleet.errors:
            assert (error.abs() <= c / size * reference * (1 + 1e-15)).all()


@few
@given(run=runs, compressor=compressors(), data=st.data())
def test_the_receiver_remembers_the_sum_of_memories_through_leaves_deaths_and_joins(
    run: tuple[int, int, int], compressor: GDSEC, data: st.DataObject
) -> None:
    seed, size, _ = run
    fleet = Fleet(compressor, size)
    for gradients in gradients_of(seed, 7, 6):
        event = data.draw(st.sampled_from(["nothing", "leave", "death", "join"]))
        error = total(fleet.errors)
        if event in ("leave", "death") and len(fleet.encoders) > 1:
            gone, *others = fleet.encoders
            assert gone.memory is None or gone.memory is not gone.error
            if event == "leave" and gone.error is not None:
                others[0].take_error(gone.error)
            elif gone.error is not None:
                error = error - gone.error
            fleet.go_on(others)
        elif event == "join" and len(fleet.encoders) < 7:
            fleet.go_on([*fleet.encoders, compressor.encoder(fleet.layout)])
        assert_close(total(fleet.errors), error)
        here = list(gradients[: len(fleet.encoders)])
        ghat = fleet.exchange(here)
        assert_close(ghat, total(here) + error - total(fleet.errors))
        assert_close(fleet.remembered, total(fleet.memories))


@few
@given(run=runs, compressor=compressors(), weights=st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_weights_are_part_of_the_sum(run: tuple[int, int, int], compressor: GDSEC, weights: list[int]) -> None:
    """A member without samples has a gradient of zero, and what it said before is taken back."""
    seed, size, num_rounds = run
    fleet = Fleet(compressor, size)
    for gradients in gradients_of(seed, size, num_rounds):
        weighted = gradients * torch.tensor(weights[:size], dtype=torch.float64)[:, None]
        before = total(fleet.errors)
        assert_close(fleet.exchange(list(weighted)), weighted.sum(0) + before - total(fleet.errors))


@few
@given(run=runs, compressor=compressors(), data=st.data())
def test_a_round_that_is_taken_back_leaves_no_trace(
    run: tuple[int, int, int], compressor: GDSEC, data: st.DataObject
) -> None:
    seed, size, num_rounds = run
    disturbed, undisturbed = Fleet(compressor, size), Fleet(compressor, size)
    for gradients in gradients_of(seed, size, num_rounds):
        for attempt in range(data.draw(st.integers(0, 2))):
            if attempt:
                for rank, encoder in enumerate(disturbed.encoders):
                    encoder.whole(gradients[rank] * 3, disturbed.round_of(rank))
            else:
                said = disturbed.encode(list(gradients * 2))
                if data.draw(st.booleans()):
                    views = {rank: one.data.data for rank, one in enumerate(said)}
                    disturbed.decoder.decode(views, torch.empty(NUMEL, dtype=torch.float64))
            for half in (*disturbed.encoders, disturbed.decoder):
                half.abort()
        assert torch.equal(disturbed.exchange(list(gradients)), undisturbed.exchange(list(gradients)))
        for one, other in zip(disturbed.messages, undisturbed.messages, strict=True):
            assert one.data.tobytes() == other.data.tobytes()


@few
@given(run=runs, compressor=compressors(per="component", values="same"))
def test_state_goes_on_in_other_buckets(run: tuple[int, int, int], compressor: GDSEC) -> None:
    seed, size, num_rounds = run
    before, *after = gradients_of(seed, size, num_rounds + 1)
    fleet = Fleet(compressor, size)
    fleet.exchange(list(before))
    saved = [half.state_dict() for half in (*fleet.encoders, fleet.decoder)]
    assert fleet.applied is not None
    # One bucket for each parameter.
    parts = list(fleet.layout.slices.values())
    alone = [Fleet(compressor, size, Layout((entry,)), step=1) for entry in fleet.layout.entries]
    for other, part in zip(alone, parts, strict=True):
        for half, state in zip((*other.encoders, other.decoder), saved, strict=True):
            half.load_state_dict(state)
        other.applied = fleet.applied[part].clone()
    for gradients in after:
        whole = fleet.exchange(list(gradients))
        apart = [one.exchange([grad[part] for grad in gradients]) for one, part in zip(alone, parts, strict=True)]
        assert torch.equal(torch.cat(apart), whole)


@few
@given(run=runs, compressor=compressors(speakers=None))
def test_replicas_of_the_receiver_hold_the_same_bits(run: tuple[int, int, int], compressor: GDSEC) -> None:
    seed, size, num_rounds = run
    fleet, replica = Fleet(compressor, size), compressor.decoder(layout_of())
    for gradients in gradients_of(seed, size, num_rounds):
        ghat, out = fleet.exchange(list(gradients)), torch.empty(NUMEL, dtype=torch.float64)
        said = {rank: one.data.data for rank, one in enumerate(fleet.messages)}
        replica.decode(dict(reversed(said.items())), out)
        replica.commit()
        assert torch.equal(out, ghat)


def test_the_averaged_form_is_the_papers_form_under_plain_sgd_at_a_constant_rate() -> None:
    """With `xi = c / alpha`, since theta moves by `-alpha ghat`."""
    size, c = 3, 10.0
    problem = Quadratics.random(0, size, NUMEL)
    alpha = 0.5 / problem.smoothness
    paper, averaged = Fleet(GDSEC(xi=c / alpha, alpha=alpha), size), Fleet(GDSEC(c=c), size)
    theta = other = moved = torch.zeros(NUMEL, dtype=torch.float64)
    for step in range(40):
        paper.applied = moved if step else None
        other = other - alpha * averaged.exchange(problem.gradients(other))
        before, theta = theta, theta - alpha * paper.exchange(problem.gradients(theta))
        moved = theta - before
        sizes = [[said.num_values for said in fleet.messages] for fleet in (paper, averaged)]
        assert sizes[0] == sizes[1]
    assert_close(theta, other)


def test_it_is_the_algorithm_of_the_paper() -> None:
    """Against the five lines of the paper, written down a second time over whole vectors."""
    size, beta, c = 4, 0.05, 20.0
    problem = Quadratics.random(1, size, NUMEL)
    alpha = 1 / problem.smoothness
    fleet = Fleet(GDSEC(xi=c / alpha, beta=beta), size)
    theta = previous = torch.zeros(NUMEL, dtype=torch.float64)
    h_m, e_m = torch.zeros(2, size, NUMEL, dtype=torch.float64)
    h = torch.zeros(NUMEL, dtype=torch.float64)
    num_sent = 0
    for _ in range(60):
        gradients = problem.gradients(theta)
        d_m = torch.stack(gradients) - h_m + e_m
        s_m = torch.where(d_m.abs() > c / alpha / size * (theta - previous).abs(), d_m, 0.0)
        e_m, h_m = d_m - s_m, h_m + beta * s_m
        ghat, h = h + s_m.sum(0), h + beta * s_m.sum(0)
        fleet.applied = theta - previous
        assert_close(fleet.exchange(gradients), ghat)
        assert [said.num_values for said in fleet.messages] == s_m.count_nonzero(1).tolist()
        num_sent += int(s_m.count_nonzero())
        previous, theta = theta, theta - alpha * ghat
    assert 0 < num_sent < 0.3 * 60 * size * NUMEL


def test_factors_are_thresholds_by_parameter_and_by_component() -> None:
    layout = layout_of()
    by_component = torch.tensor([0.0, 1.0, 2.0, 4.0])
    compressor = GDSEC(c=2, beta=0, factors={"wei*": 1.5, "bias": by_component / 2})
    fleet = Fleet(compressor, 1, layout)
    fleet.exchange([torch.ones(NUMEL, dtype=torch.float64)])
    fleet.exchange([torch.full((NUMEL,), 2.5, dtype=torch.float64)])
    kept = {name: part.tolist() for name, part in layout.views(fleet.errors[0] != 0)}
    assert kept["weight"] == [[True] * 4] * 3
    assert kept["bias"] == [False, False, False, True]
    assert kept["scale"] is False
    with pytest.raises(ExchangeInvalid, match=r"factor of 'weight' has shape \(4,\)"):
        GDSEC(c=1, factors={"*": by_component}).encoder(layout)


def test_a_layer_and_a_bucket_are_sent_as_one_or_not_at_all() -> None:
    cases: list[tuple[Per, list[str]]] = [("layer", ["bias"]), ("bucket", [])]
    for per, sent in cases:
        fleet = Fleet(GDSEC(c=2, beta=0, per=per), 1)
        fleet.exchange([torch.ones(NUMEL, dtype=torch.float64)])
        gradient = torch.ones(NUMEL, dtype=torch.float64)
        # By component only one of these would go.
        gradient[fleet.layout.slices["bias"]] = torch.tensor([6.0, 1.0, 1.0, 1.0], dtype=torch.float64)
        fleet.exchange([gradient])
        assert list(fleet.messages[0].layers) == sent
        assert fleet.messages[0].num_values == (4 if sent else 0)


def test_members_speak_by_turns() -> None:
    fleet = Fleet(GDSEC(c=0, speakers=2), 4)
    loud = [[rank for rank, said in enumerate(turn) if len(said.data)] for turn in _turns(fleet, 4)]
    assert loud == [[0, 1], [2, 3], [0, 1], [2, 3]]


def _turns(fleet: Fleet, num_rounds: int) -> Any:
    for gradients in gradients_of(3, fleet.size, num_rounds):
        fleet.exchange(list(gradients))
        yield fleet.messages


def test_nothing_to_say_takes_no_bytes() -> None:
    fleet = Fleet(GDSEC(c=100, beta=0.01), 3)
    gradients = list(gradients_of(5, 3, 1)[0])
    fleet.exchange(gradients)
    assert all(said.bits for said in fleet.messages)
    fleet.exchange(gradients)
    assert [said.bits for said in fleet.messages] == [0, 0, 0]


def test_state_of_half_precision_gradients_is_kept_in_float32_and_they_are_sent_in_16_bits() -> None:
    layout = layout_of(torch.bfloat16)
    fleet = Fleet(GDSEC(c=0, beta=0.1), 2, layout)
    sums = torch.zeros(2, NUMEL)
    for gradients in gradients_of(9, 2, 20, torch.bfloat16):
        sums[0] += fleet.exchange(list(gradients)).float()
        sums[1] += gradients.float().sum(0)
    header_bytes = 3
    assert all(
        said.num_values * 2 <= len(said.data) <= said.num_values * 2 + 3 + header_bytes for said in fleet.messages
    )
    assert fleet.errors[0].dtype == fleet.memories[0].dtype == torch.float32
    # Applied sums are rounded to bfloat16 each time, by design; what was sent is not lost.
    assert torch.allclose(sums[0] + total(fleet.errors), sums[1], atol=20 * 2**-8, rtol=0)


def test_entering_bypass_forgets() -> None:
    fleet = Fleet(GDSEC(c=10, beta=0.1), 2)
    for gradients in gradients_of(2, 2, 4):
        fleet.exchange(list(gradients))
    assert total(fleet.errors).any()
    for encoder in fleet.encoders:
        encoder.flush()
    fleet.decoder.flush()
    assert not any(state.any() for state in (*fleet.errors, *fleet.memories, fleet.remembered))


def test_a_corrupt_message_is_named_by_its_rank_and_changes_nothing() -> None:
    fleet = Fleet(GDSEC(c=0, beta=0.1), 2)
    gradients = list(gradients_of(4, 2, 1)[0])
    said = [one.data for one in fleet.encode(gradients)]
    out = torch.empty(NUMEL, dtype=torch.float64)
    with pytest.raises(MessageCorrupt, match="rank 1") as caught:
        fleet.decoder.decode({0: said[0].data, 1: said[1][:-1].data}, out)
    assert caught.value.rank == 1
    fleet.decoder.decode({rank: one.data for rank, one in enumerate(said)}, out)
    assert_close(out, total(gradients))


@pytest.mark.parametrize("per", ["component", "layer", "bucket"])
def test_nan_is_sent_and_never_kept(per: Any) -> None:
    fleet = Fleet(GDSEC(c=1e6, beta=0, per=per), 1)
    fleet.exchange([torch.ones(NUMEL, dtype=torch.float64)])
    fleet.exchange([torch.ones(NUMEL, dtype=torch.float64)])
    assert fleet.messages[0].bits < 64, "what differs little is not sent"
    spoilt = torch.ones(NUMEL, dtype=torch.float64)
    spoilt[3] = float("nan")
    assert fleet.exchange([spoilt]).isnan().tolist() == [at == 3 for at in range(NUMEL)]
    assert not fleet.errors[0].isnan().any()


def test_a_round_must_be_settled_before_the_next() -> None:
    encoder, decoder = GDSEC().encoder(layout_of()), GDSEC().decoder(layout_of())
    gradient = torch.ones(NUMEL, dtype=torch.float64)
    encoder.encode(gradient, Round(0))
    decoder.decode({}, gradient.clone())
    for again in (lambda: encoder.encode(gradient, Round(0)), lambda: encoder.whole(gradient, Round(0))):
        with pytest.raises(RuntimeError, match="neither committed nor aborted"):
            again()
    with pytest.raises(RuntimeError, match="neither committed nor aborted"):
        decoder.decode({}, gradient.clone())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"c": -1.0}, "c of 0 or more, not -1.0"),
        ({"beta": float("nan")}, "beta of 0 or more, not nan"),
        ({"per": "tensor"}, "component or layer or bucket, not 'tensor'"),
        ({"density": 0.0}, "density over 0"),
        ({"density": 0.1, "per": "layer"}, "leave out"),
        ({"alpha": 0.1}, "with xi only"),
        ({"momentum": 1.0}, "momentum below 1"),
        ({"c": 100.0, "beta": 0.05, "on_unstable": "raise"}, "use beta <= 0.02"),
        ({"xi": 1000.0, "alpha": 0.1, "beta": 0.05, "on_unstable": "raise"}, "beta \\* c = 5"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ExchangeInvalid, match=words):
        GDSEC(**options)


def test_wrong_bytes_of_another_bucket_are_refused() -> None:
    other = pack_sparse(Layout((BucketEntry("a", (100,)),)), np.array([99]), np.array([1.0]))
    with pytest.raises(MessageCorrupt, match="rank 0"):
        GDSEC().decoder(layout_of()).decode({0: other.data.data}, torch.empty(NUMEL, dtype=torch.float64))


@pytest.mark.parametrize("per", ["component", "layer", "bucket"])
def test_what_differs_by_just_its_threshold_is_kept_back(per: Any) -> None:
    """The paper sends what is above its threshold; what is equal to it waits, and the error stays within its bound."""
    fleet = Fleet(GDSEC(c=1, beta=0, per=per), 1)
    fleet.exchange([torch.ones(NUMEL, dtype=torch.float64)])
    fleet.exchange([torch.ones(NUMEL, dtype=torch.float64)])
    assert fleet.messages[0].bits == 0
    assert (fleet.errors[0] == 1).all()


@pytest.mark.parametrize(("density", "num"), [(0.01, 1), (0.3, 5), (1.0, NUMEL)])
def test_a_density_sends_that_share_of_the_components_the_largest_ones(density: float, num: int) -> None:
    fleet = Fleet(GDSEC(density=density, beta=0), 1)
    # 0.5, -1, 1.5, ... in an order that is not that of the components
    gradient = torch.tensor([(-1.0) ** at * (at + 1) / 2 for at in range(NUMEL)], dtype=torch.float64)
    gradient = gradient[torch.randperm(NUMEL, generator=torch.Generator().manual_seed(0))]
    applied = fleet.exchange([gradient])
    largest = gradient.abs() > (NUMEL - num) / 2
    assert fleet.messages[0].num_values == num
    assert torch.equal(applied, torch.where(largest, gradient, 0.0))
    assert torch.equal(fleet.errors[0], torch.where(largest, 0.0, gradient))


def test_a_density_sends_nothing_of_a_gradient_of_zeros() -> None:
    fleet = Fleet(GDSEC(density=0.5, beta=0), 1)
    assert not fleet.exchange([torch.zeros(NUMEL, dtype=torch.float64)]).any()
    assert fleet.messages[0].bits == 0


def test_the_factor_of_a_layer_is_one_of_its_threshold() -> None:
    fleet = Fleet(GDSEC(c=1, beta=0, per="layer", factors={"bias": 4.0}), 1)
    fleet.exchange([torch.ones(NUMEL, dtype=torch.float64)])
    fleet.exchange([torch.full((NUMEL,), 2.0, dtype=torch.float64)])
    assert list(fleet.messages[0].layers) == ["weight", "scale"]


def test_gradients_of_16_bits_are_added_in_32() -> None:
    fleet = Fleet(GDSEC(c=0, beta=0), 3, layout_of(torch.float16))
    total = fleet.exchange([torch.full((NUMEL,), number, dtype=torch.float16) for number in (2048.0, 1.0, 1.0)])
    assert total.dtype == torch.float16 and (total == 2050).all(), "each 1 alone is rounded away"


@pytest.mark.parametrize("silent", ["computes", "rests"])
def test_a_silent_round_is_settled_like_any_other(silent: Any) -> None:
    fleet = Fleet(GDSEC(c=0, beta=0.1, silent=silent), 1)
    gradient = torch.ones(NUMEL, dtype=torch.float64)
    fleet.encode([gradient], frozenset({0}))
    with pytest.raises(RuntimeError, match="neither committed nor aborted"):
        fleet.encode([gradient])


@pytest.mark.parametrize("silent", ["computes", "rests"])
def test_a_silent_member_adds_zeros_to_a_dense_sum_and_keeps_what_it_computed(silent: Any) -> None:
    encoder = GDSEC(c=0, beta=0.1, silent=silent).encoder(layout_of())
    gradient = torch.ones(NUMEL, dtype=torch.float64)
    assert torch.equal(encoder.whole(gradient, Round(0, participates=False)), torch.zeros_like(gradient))
    encoder.commit()
    assert encoder.error is not None
    assert encoder.memory is not None
    assert torch.equal(encoder.error, gradient if silent == "computes" else torch.zeros_like(gradient))
    assert not encoder.memory.any()


def test_a_dense_sum_may_be_computed_in_place_before_the_round_counts() -> None:
    """An all-reduce writes into the tensor that it is given, and what is remembered is what this member had said."""
    config, gradient = GDSEC(beta=0.5, on_unstable="clamp", c=2), torch.ones(NUMEL, dtype=torch.float64)
    encoder, decoder = config.encoder(layout_of()), config.decoder(layout_of())
    total = encoder.whole(gradient, Round(0))
    total.mul_(3)
    decoder.decode_whole(total, torch.empty_like(total))
    total.zero_()
    encoder.commit()
    decoder.commit()
    remembered = torch.empty_like(total)
    decoder.decode({}, remembered)
    assert encoder.memory is not None and torch.equal(encoder.memory, config.memory_rate * gradient)
    assert torch.equal(remembered, 3 * config.memory_rate * gradient)


def test_a_round_counts_once_however_often_it_is_committed() -> None:
    gradients = list(gradients_of(6, 2, 1)[0])
    fleet, other = (Fleet(GDSEC(c=0, beta=0.1), 2) for _ in range(2))
    fleet.exchange(gradients)
    for half in (*other.encoders, other.decoder):
        half.commit()  # no round has begun
    other.exchange(gradients)
    for half in (*other.encoders, other.decoder):
        half.commit()
    for one, again in zip([*fleet.memories, fleet.remembered], [*other.memories, other.remembered], strict=True):
        assert torch.equal(one, again)
    plain = GDSEC(c=0, beta=0).decoder(layout_of())
    plain.commit()
    assert plain.state_dict() == {}


def test_a_sum_is_written_to_any_tensor_that_can_hold_it() -> None:
    gradients = list(gradients_of(8, 2, 1)[0])
    fleet = Fleet(GDSEC(c=0, beta=0.1), 2)
    said = {rank: one.data.data for rank, one in enumerate(fleet.encode(gradients))}
    out = torch.full((NUMEL, 2), float("nan"), dtype=torch.float64)
    fleet.decoder.decode(said, out[:, 0])
    assert_close(out[:, 0], total(gradients))
    assert out[:, 1].isnan().all()
    fleet.decoder.abort()
    fleet.decoder.decode_whole(total(gradients), out[:, 1])
    assert_close(out[:, 1], total(gradients))


def test_what_16_bits_cannot_hold_of_a_component_that_is_sent_stays_in_the_error() -> None:
    layout = layout_of(torch.bfloat16)
    fleet = Fleet(GDSEC(c=0, beta=0.1), 1, layout)
    first, second = gradients_of(11, 1, 2, torch.bfloat16)
    fleet.exchange(list(first))
    difference = second[0].float() - fleet.memories[0]
    lost = difference - difference.bfloat16().float()
    fleet.exchange(list(second))
    assert lost.any()
    assert torch.equal(fleet.errors[0], lost)


def test_a_dense_sum_must_be_settled_before_the_next() -> None:
    decoder, total_ = GDSEC().decoder(layout_of()), torch.ones(NUMEL, dtype=torch.float64)
    decoder.decode_whole(total_, total_.clone())
    with pytest.raises(RuntimeError, match="neither committed nor aborted"):
        decoder.decode_whole(total_, total_.clone())
