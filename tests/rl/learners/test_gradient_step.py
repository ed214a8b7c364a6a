from __future__ import annotations

import math
import pickle
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from ropewalk.errors import NotFinite
from ropewalk.rl.learners.gradient_step import GradientStep
from ropewalk.rl.learners.optimizers import TorchAdam
from tests.rl.agents.experience import info_of

INFO = info_of(2, (0, 0))


def descent(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(3))]


def slope(trained: list[nn.Parameter], *gradient: float) -> Tensor:
    """A loss with this gradient; the last parameter is not part of it."""
    return trained[0] @ torch.tensor(gradient[:2]) + trained[1] * gradient[2]


@pytest.mark.parametrize(
    ("max_norm", "change"), [(None, (3.0, 0.0, 4.0)), (5.0, (3.0, 0.0, 4.0)), (1.0, (0.6, 0.0, 0.8))]
)
def test_a_gradient_with_a_larger_norm_is_scaled_down_to_it(max_norm: float | None, change: tuple[float, ...]) -> None:
    trained = parameters()
    step = GradientStep(trained, descent, max_norm=max_norm)
    assert step.take(slope(trained, 3.0, 0.0, 4.0), INFO) == 5.0
    assert [-x for part in trained[:2] for x in part.reshape(-1).tolist()] == pytest.approx(change)
    assert trained[2].tolist() == [0, 0, 0]


def test_gradients_do_not_add_up_from_step_to_step() -> None:
    trained = parameters()
    step = GradientStep(trained, descent)
    norms = [step.take(slope(trained, 1.0, 0.0, 0.0), INFO) for _ in range(3)]
    assert norms == [1.0, 1.0, 1.0]
    assert trained[0].tolist() == [-3.0, 0.0]


def test_the_learning_rate_is_scaled_from_the_one_that_the_optimizer_was_made_with() -> None:
    trained = parameters()
    step = GradientStep(trained, descent)
    for factor in (0.5, 0.25, 1.0):
        step.scale_learning_rate(factor)
        step.take(slope(trained, 1.0, 0.0, 0.0), INFO)
    assert trained[0].tolist() == [-1.75, 0.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_raises_and_changes_nothing(bad: float) -> None:
    trained = parameters()
    step = GradientStep(trained, descent, max_norm=1.0)
    with pytest.raises(
        NotFinite, match=r"the norm of its gradient (nan|inf); the batch has .* keys \[100, 101\]"
    ) as caught:
        step.take(slope(trained, bad, 0.0, 0.0), INFO)
    assert trained[0].tolist() == [0, 0]
    assert pickle.loads(pickle.dumps(caught.value)).keys == (100, 101)


def test_a_loss_that_is_infinite_with_a_finite_gradient_raises() -> None:
    trained = parameters()
    with pytest.raises(NotFinite, match="the loss is inf") as caught:
        GradientStep(trained, descent).take(slope(trained, 1.0, 0.0, 0.0) + math.inf, INFO)
    assert caught.value.column == "loss"


def test_ten_skipped_steps_in_a_row_raise_and_a_finite_one_begins_the_count_anew() -> None:
    trained = parameters()
    step = GradientStep(trained, descent, not_finite="skip")
    for _ in range(2):
        for _ in range(9):
            step.take(slope(trained, math.nan, 0.0, 0.0), INFO)
        step.take(slope(trained, 1.0, 0.0, 0.0), INFO)
    assert (step.num_skipped, trained[0].tolist()) == (18, [-2.0, 0.0])
    for _ in range(9):
        step.take(slope(trained, math.nan, 0.0, 0.0), INFO)
    with pytest.raises(NotFinite, match="for the 10th time in a row"):
        step.take(slope(trained, math.nan, 0.0, 0.0), INFO)


def test_a_state_has_the_count_of_skipped_steps_and_the_learning_rate_stays_that_of_the_settings() -> None:
    trained = parameters()
    step = GradientStep(trained, TorchAdam(1.0), not_finite="skip")
    step.scale_learning_rate(0.5)
    for _ in range(6):
        step.take(slope(trained, math.nan, 0.0, 0.0), INFO)
    state = step.state_dict()
    others = parameters()
    other = GradientStep(others, TorchAdam(2.0), not_finite="skip")
    other.load_state_dict(state)
    assert other.num_skipped == 6
    for _ in range(3):
        other.take(slope(others, math.nan, 0.0, 0.0), INFO)
    with pytest.raises(NotFinite):
        other.take(slope(others, math.nan, 0.0, 0.0), INFO)
    other.take(slope(others, 1.0, 0.0, 0.0), INFO)
    assert others[0].tolist() == pytest.approx([-2.0, 0.0])


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="not_finite must be one of 'raise', 'skip', not 'ignore'"):
        GradientStep(parameters(), descent, not_finite="ignore")  # type: ignore[arg-type]
