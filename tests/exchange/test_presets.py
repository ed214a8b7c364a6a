"""Presets against their own definitions, written down a second time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ropewalk.exchange.presets import PRESETS, cgd, componentwise_lag, gradient_descent, qgd, top_j
from tests.exchange.compressors.gd_sec_fleet import Fleet, Quadratics, layout_of, total

NUMEL = layout_of().numel
SIZE = 3


def trajectory(fleet: Fleet, num_rounds: int = 25) -> list[tuple[list[Tensor], Tensor]]:
    """Gradients, and what was applied."""
    problem = Quadratics.random(7, SIZE, NUMEL)
    theta, rounds = torch.zeros(NUMEL, dtype=torch.float64), list[tuple[list[Tensor], Tensor]]()
    for _ in range(num_rounds):
        gradients = problem.gradients(theta)
        rounds.append((gradients, fleet.exchange(gradients)))
        theta = theta - 0.5 / problem.smoothness * rounds[-1][1]
    return rounds


def test_gradient_descent_sends_dense_vectors_bit_by_bit() -> None:
    fleet = Fleet(gradient_descent(), SIZE)
    for gradients, ghat in trajectory(fleet):
        assert torch.equal(ghat, gradients[0] + gradients[1] + gradients[2])
    header_bytes = 3
    assert [len(said.data) for said in fleet.messages] == [NUMEL * 8 + header_bytes] * SIZE


def test_cgd_sends_a_whole_gradient_or_repeats_the_last_one() -> None:
    fleet, c = Fleet(cgd(0.5), SIZE), 0.5
    held = torch.zeros(SIZE, NUMEL, dtype=torch.float64)
    applied, num_silent = None, 0
    for gradients, ghat in trajectory(fleet):
        for rank, gradient in enumerate(gradients):
            if applied is None or (gradient - held[rank]).norm() > c / SIZE * applied.norm():
                held[rank] = gradient
            else:
                num_silent += 1
        torch.testing.assert_close(ghat, held.sum(0), rtol=0, atol=1e-12)
        applied = ghat
    assert num_silent > 0


def test_componentwise_lag_does_so_by_component() -> None:
    fleet = Fleet(componentwise_lag(0.5), SIZE)
    held = torch.zeros(SIZE, NUMEL, dtype=torch.float64)
    applied = torch.zeros(NUMEL, dtype=torch.float64)
    for gradients, ghat in trajectory(fleet):
        moved = (torch.stack(gradients) - held).abs() > 0.5 / SIZE * applied.abs()
        held = torch.where(moved, torch.stack(gradients), held)
        torch.testing.assert_close(ghat, held.sum(0), rtol=0, atol=1e-12)
        applied = ghat


def test_top_j_sends_as_many_components_as_it_says() -> None:
    fleet = Fleet(top_j(0.3), SIZE)
    kept = torch.zeros(SIZE, NUMEL, dtype=torch.float64)
    for gradients, ghat in trajectory(fleet):
        wanted = torch.stack(gradients) + kept
        places = wanted.abs().topk(5, dim=1).indices
        said = torch.zeros_like(wanted).scatter(1, places, wanted.gather(1, places))
        kept = wanted - said
        torch.testing.assert_close(ghat, said.sum(0), rtol=0, atol=1e-12)
        assert [message.num_values for message in fleet.messages] == [5] * SIZE


def test_qgd_is_right_on_average_and_takes_few_bits() -> None:
    gradients = list(torch.randn(SIZE, NUMEL, dtype=torch.float64))
    fleet = Fleet(qgd(7), SIZE)
    heard = torch.stack([fleet.exchange(gradients) for _ in range(400)])
    spread = heard.std(0) / 400**0.5
    assert ((heard.mean(0) - total(gradients)).abs() <= 5 * spread + 1e-9).all()
    assert all(len(said.data) < NUMEL * 8 / 4 for said in fleet.messages)
    assert all(encoder.error is None and encoder.memory is None for encoder in fleet.encoders)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_says_its_options(name: str) -> None:
    assert eval(repr(PRESETS[name]()), {"GDSEC": PRESETS["gd_sec"]}) == PRESETS[name]()
