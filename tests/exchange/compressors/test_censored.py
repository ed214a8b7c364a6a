"""CGD: a bucket that has hardly changed is not sent."""

from __future__ import annotations

import torch

from ropewalk.exchange.compressors import Censored, Encoder, Round
from tests.exchange.compressors.rounds import layout_of

LAYOUT = layout_of((3,), (1,))


def says(encoder: Encoder, gradient: list[float], applied: list[float] | None, step: int = 0, size: int = 2) -> bool:
    """Whether a member says something; the round is committed."""
    last = None if applied is None else torch.tensor(applied, dtype=torch.float32)
    message = encoder.encode(torch.tensor(gradient, dtype=torch.float32), Round(step, 0, size, applied=last))
    encoder.commit()
    return bool(message.bits)


def test_a_change_is_said_above_c_over_m_of_what_was_applied() -> None:
    encoder = Censored(c=2.0).encoder(LAYOUT)
    assert says(encoder, [3, 0, 0, 4], None)
    assert not says(encoder, [3, 0, 0, 4], None), "nothing has changed"
    # The limit is 2 / 4 * 10 = 5; the change is counted against what was said, not against the last gradient.
    assert not says(encoder, [3, 3, 0, 8], [6, 0, 0, 8], size=4)
    assert says(encoder, [3, 3.1, 0, 8], [6, 0, 0, 8], size=4)
    assert encoder.memory is not None
    assert torch.allclose(encoder.memory, torch.tensor([3, 3.1, 0, 8]))


def test_history_averages_squares_over_rounds() -> None:
    encoder = Censored(c=1.0, history=2).encoder(LAYOUT)
    assert not says(encoder, [0, 0, 0, 0], [6, 0, 0, 0], size=1)
    # sqrt((6^2 + 8^2) / 2) = 7.07
    assert not says(encoder, [7.0, 0, 0, 0], [0, 0, 0, 8], size=1)
    # sqrt((0^2 + 8^2) / 2) = 5.66
    assert says(encoder, [5.7, 0, 0, 0], [0, 0, 0, 0], size=1)


def test_silent_members_go_on_speaking_by_their_memory() -> None:
    encoder, decoder = Censored().encoder(LAYOUT), Censored().decoder(LAYOUT)
    gradient, out = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.empty(4)
    for step in range(3):
        message = encoder.encode(gradient, Round(step))
        decoder.decode({0: message.data.data}, out)
        encoder.commit()
        decoder.commit()
        assert bool(message.bits) == (step == 0)
        assert torch.equal(out, gradient)


def test_workers_whose_gradients_change_little_say_little_on_the_way_to_the_optimum() -> None:
    chance = torch.Generator().manual_seed(0)
    scales = torch.tensor([0.1, 0.3, 1.0, 3.0], dtype=torch.float64).view(4, 1, 1)
    A = scales * torch.randn(4, 30, 4, generator=chance, dtype=torch.float64)
    b = torch.randn(4, 30, 1, generator=chance, dtype=torch.float64)
    hessians, constants = A.mT @ A, (A.mT @ b)[..., 0]
    optimum = hessians.sum(0).inverse() @ constants.sum(0)
    alpha = 1 / hessians.sum(0).norm().item()
    layout = layout_of((4,), dtype=torch.float64)
    encoders, decoder = [Censored(c=0.5).encoder(layout) for _ in scales], Censored().decoder(layout)
    theta, applied = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    num_messages = [0, 0, 0, 0]
    for step in range(150):
        messages: dict[int, memoryview] = {}
        for rank, encoder in enumerate(encoders):
            gradient = hessians[rank] @ theta - constants[rank]
            message = encoder.encode(gradient, Round(step, rank, 4, applied=applied if step else None))
            messages[rank] = message.data.data
            num_messages[rank] += bool(message.bits)
        decoder.decode(messages, applied)
        for half in (*encoders, decoder):
            half.commit()
        theta = theta - alpha * applied
    assert (theta - optimum).norm() < 1e-6 * optimum.norm()
    assert max(num_messages[:2]) < 40
    assert sum(num_messages) < 0.6 * 4 * 150
