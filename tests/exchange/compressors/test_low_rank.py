"""PowerSGD: projections on few directions, which warm starts turn to the best ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from ropewalk.exchange.compressors import ErrorFeedback, LowRank, Round
from tests.exchange.compressors.rounds import heard, layout_of, sum_of, summed

LAYOUT = layout_of((30, 20), (20,))


def test_what_has_the_rank_is_sent_as_it_is() -> None:
    product = (torch.randn(30, 2) @ torch.randn(2, 20)).view(-1)
    gradient = torch.cat([product, torch.randn(20)])
    assert torch.allclose(heard(LowRank(2), LAYOUT, [gradient]), gradient, atol=1e-4)
    assert torch.allclose(summed([LowRank(2).encoder(LAYOUT)], [gradient]), gradient, atol=1e-4)


def test_warm_starts_find_the_best_approximation_of_the_sum() -> None:
    gradients = list(torch.randn(3, LAYOUT.numel))
    encoders = [LowRank(2).encoder(LAYOUT) for _ in gradients]
    found = torch.empty(0)
    for step in range(80):
        found = summed(encoders, gradients, step)
    matrix = sum_of(gradients)[:600].view(30, 20)
    U, S, V = cast(tuple[Tensor, Tensor, Tensor], torch.svd(matrix))
    best = (matrix - U[:, :2] * S[:2] @ V[:, :2].T).norm()
    assert (matrix - found[:600].view(30, 20)).norm() <= 1.02 * best
    assert torch.allclose(found[600:], sum_of(gradients)[600:], atol=1e-5)


def test_a_start_that_says_nothing_is_not_taken_over() -> None:
    encoder, gradient = LowRank(1).encoder(LAYOUT), torch.randn(LAYOUT.numel)
    expected = heard(LowRank(1), LAYOUT, [gradient])
    summed([encoder], [torch.zeros(LAYOUT.numel)])
    assert torch.allclose(summed([encoder], [gradient]), expected, atol=1e-5)


def test_only_what_gets_smaller_becomes_factors() -> None:
    layout = layout_of((30, 20), (3, 3), (20,), (), (8, 4, 3, 3))
    message = LowRank(2).encoder(layout).encode(torch.randn(layout.numel), Round(0))
    sizes = {"p0": 2 * 50, "p1": 9, "p2": 20, "p3": 1, "p4": 2 * (8 + 36)}
    assert dict(message.layers) == {name: 4 * size for name, size in sizes.items()}


def test_vectors_alone_take_one_sum() -> None:
    layout, gradients = layout_of((5,), ()), list(torch.randn(3, 6))
    encoder = LowRank().encoder(layout)
    assert encoder.next_summand(encoder.summand(gradients[0], Round(0))) is None
    assert torch.allclose(summed([LowRank().encoder(layout) for _ in gradients], gradients), sum_of(gradients))


def test_what_one_member_did_not_say_is_its_own_error() -> None:
    gradients = list(torch.randn(2, LAYOUT.numel))
    encoders = [ErrorFeedback(LowRank(2)).encoder(LAYOUT) for _ in gradients]
    applied = summed(encoders, gradients)
    for encoder, gradient in zip(encoders, gradients, strict=True):
        assert encoder.error is not None
        # A projection: what is kept is orthogonal to what was said, so it is never larger than the gradient.
        assert encoder.error.norm() < gradient.norm()
        assert abs(torch.dot(encoder.error, gradient - encoder.error)) < 1e-2
    errors = sum_of([encoder.error for encoder in encoders if encoder.error is not None])
    assert torch.allclose(applied + errors, sum_of(gradients), atol=1e-4)


def test_state_of_another_rank_is_refused() -> None:
    state = LowRank(3).encoder(LAYOUT).state_dict()
    with pytest.raises(ValueError, match=r"'p0' has factors of shape \(20, 3\), this encoder's are \(20, 2\)"):
        LowRank(2).encoder(LAYOUT).load_state_dict(state)


class Alone:
    """What torch's hook asks of its process group and of DistributedDataParallel, for a job of one process."""

    def __init__(self, *gradients: Tensor) -> None:
        self._flat = torch.cat([torch.empty(0), *(gradient.reshape(-1) for gradient in gradients)])
        self._sizes = [gradient.numel() for gradient in gradients]
        self._shapes = [gradient.shape for gradient in gradients]

    def size(self) -> int:
        return 1

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def buffer(self) -> Tensor:
        return self._flat

    def gradients(self) -> list[Tensor]:
        parts = self._flat.split_with_sizes(self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    @staticmethod
    def all_reduce(tensor: Tensor, **_: Any) -> Any:
        future = cast(Any, torch.futures.Future)()
        future.set_result([tensor])
        return SimpleNamespace(get_future=lambda: future)


def test_a_round_gives_what_torch_s_own_hook_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    # With one member the sum is the summand. A gloo group would leave threads and sockets behind.
    monkeypatch.setattr(torch.distributed, "all_reduce", Alone.all_reduce)
    hooks = cast(Any, powerSGD_hook)
    state = hooks.PowerSGDState(Alone(), matrix_approximation_rank=2, start_powerSGD_iter=2, use_error_feedback=False)
    encoder = LowRank(2).encoder(LAYOUT)
    for step in range(5):
        gradient = torch.randn(LAYOUT.numel)
        if step > 2:
            # Torch draws another start. From here on both go on from the same.
            encoder.load_state_dict({"Q": {"p0": state.q_memory_dict[0].view(20, 2)}})
        expected: Tensor = hooks.powerSGD_hook(state, Alone(gradient[:600].view(30, 20), gradient[600:])).wait()
        if step > 2:
            found = summed([encoder], [gradient], step)
            assert (found - gradient).norm() > 0.5 * gradient.norm()
            assert (found - expected).norm() < 1e-5 * expected.norm()
