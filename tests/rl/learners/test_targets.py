from __future__ import annotations

import pytest
import torch
from torch import nn

from ropewalk.rl.learners.targets import Polyak, TargetCopy, copy_weights, target_of


def layer(value: float) -> nn.Module:
    made = nn.BatchNorm1d(2)
    with torch.no_grad():
        for tensor in (*made.parameters(), made.running_mean):
            assert tensor is not None
            tensor.fill_(value)
    return made


def weights(module: nn.Module) -> list[float]:
    return [tensor.flatten()[0].item() for tensor in (*module.parameters(), *module.buffers())][:3]


def test_a_target_is_equal_at_first_and_needs_no_gradient() -> None:
    online = layer(3.0)
    target = target_of(online)
    assert weights(target) == [3.0, 3.0, 3.0]
    assert not any(parameter.requires_grad for parameter in target.parameters())
    assert all(parameter.requires_grad for parameter in online.parameters())


def test_a_copy_is_made_after_every_period_of_updates() -> None:
    online, target = layer(0.0), layer(0.0)
    seen = []
    for update in range(1, 8):
        with torch.no_grad():
            for tensor in (*online.parameters(), online.running_mean):
                tensor.fill_(update)  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
        TargetCopy(3).follow(target, online, update)
        seen.append(weights(target))
    assert seen == [[copied] * 3 for copied in (0, 0, 3, 3, 3, 6, 6)]


def test_polyak_moves_the_target_by_a_share() -> None:
    online, target = layer(1.0), layer(0.0)
    for update in range(1, 4):
        Polyak(0.25).follow(target, online, update)
    assert weights(target)[:2] == pytest.approx([1 - 0.75**3] * 2)
    assert weights(target)[2] == 1.0  # buffers are copied
    assert weights(online) == [1.0] * 3


def test_weights_are_copied_and_not_shared() -> None:
    online, target = layer(1.0), layer(0.0)
    copy_weights(target, online)
    with torch.no_grad():
        for parameter in online.parameters():
            parameter.add_(1)
    assert weights(target) == [1.0] * 3


def test_a_period_of_no_updates_is_refused() -> None:
    with pytest.raises(ValueError, match="period=0 updates; it must be at least 1"):
        TargetCopy(0)


@pytest.mark.parametrize("tau", [0.0, 1.5])
def test_a_share_that_is_none_is_refused(tau: float) -> None:
    with pytest.raises(ValueError, match=f"tau={tau} must be above 0 and at most 1"):
        Polyak(tau)
