"""V-trace against the sum of the paper's equation 1, written in loops, and against what it must be in the limits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from ropewalk.rl.losses.n_step import n_step_returns
from ropewalk.rl.losses.vtrace import VTraceReturns, vtrace
from tests.rl.losses.steps import EnvironmentSteps, column, flags, random_steps

SEEDS = range(8)


def vtrace_of(
    steps: EnvironmentSteps,
    discount: float = 0.9,
    lambda_: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
) -> VTraceReturns:
    return vtrace(
        log_prob=steps.log_prob,
        behaviour_log_prob=steps.behaviour_log_prob,
        reward=steps.reward,
        terminated=steps.terminated,
        mask=steps.mask,
        values=steps.values,
        discount=discount,
        lambda_=lambda_,
        rho_bar=rho_bar,
        c_bar=c_bar,
        pg_rho_bar=pg_rho_bar,
    )


def sums_of_equation_1(
    steps: EnvironmentSteps, env: int, episode: range, discount: float, lambda_: float, rho_bar: float, c_bar: float
) -> list[float]:
    """v_s = V(x_s) + sum over t of gamma^(t-s) (product of c_i from s to t-1) rho_t (r_t + gamma V(x_t+1) - V(x_t))."""
    value = [float(each) for each in steps.values[:, env]]
    ratio = {t: math.exp(float(steps.log_prob[t, env]) - float(steps.behaviour_log_prob[t, env])) for t in episode}
    gamma = {t: 0.0 if steps.terminated[t, env] else discount for t in episode}
    out: list[float] = []
    for s in episode:
        v = value[s]
        for t in range(s, episode.stop):
            product = 1.0
            for i in range(s, t):
                product *= gamma[i] * lambda_ * min(c_bar, ratio[i])
            delta = min(rho_bar, ratio[t]) * (float(steps.reward[t, env]) + gamma[t] * value[t + 1] - value[t])
            v += product * delta
        out.append(v)
    return out


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("lambda_", "rho_bar", "c_bar"), [(1.0, 1.0, 1.0), (0.9, 2.0, 0.7), (0.0, 1.0, 1.0)])
def test_targets_are_the_sum_of_the_papers_equation(seed: int, lambda_: float, rho_bar: float, c_bar: float) -> None:
    steps = random_steps(seed)
    found = vtrace_of(steps, 0.9, lambda_, rho_bar, c_bar).targets
    expected = steps.per_episode(
        lambda env, episode: sums_of_equation_1(steps, env, episode, 0.9, lambda_, rho_bar, c_bar), steps.values[:-1]
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_advantages_bootstrap_with_the_next_target(seed: int) -> None:
    steps = random_steps(seed)
    found = vtrace_of(steps, 0.9, pg_rho_bar=1.5)

    def advantages(env: int, episode: range) -> list[float]:
        out: list[float] = []
        for t in episode:
            last = t + 1 == episode.stop
            following = float(steps.values[t + 1, env] if last else found.targets[t + 1, env])
            gamma = 0.0 if steps.terminated[t, env] else 0.9
            ratio = math.exp(float(steps.log_prob[t, env]) - float(steps.behaviour_log_prob[t, env]))
            error = float(steps.reward[t, env]) + gamma * following - float(steps.values[t, env])
            out.append(min(1.5, ratio) * error)
        return out

    expected = steps.per_episode(advantages, torch.zeros_like(steps.reward))
    torch.testing.assert_close(found.advantages, expected, rtol=1e-12, atol=1e-12)


def test_a_small_table_by_hand() -> None:
    # Ratios 1/2, 2, 1; gamma 1/2. From the end, with clipped ratios 1/2, 1, 1:
    #   step 2: delta = 1 (4 + 2/2 - 3) = 2,         v = 3 + 2 = 5
    #   step 1: delta = 1 (2 + 3/2 - 1) = 2.5,       v = 1 + 2.5 + 1/2 1 2 = 4.5
    #   step 0: delta = 1/2 (1 + 1/2 - 2) = -0.25,   v = 2 - 0.25 + 1/2 1/2 3.5 = 2.625
    # Advantages: 1/2 (1 + 4.5/2 - 2) = 0.625; 1 (2 + 5/2 - 1) = 3.5; 1 (4 + 2/2 - 3) = 2
    found = vtrace(
        log_prob=column(0.0, math.log(2), 0.0),
        behaviour_log_prob=column(math.log(2), 0.0, 0.0),
        reward=column(1, 2, 4),
        terminated=flags(0, 0, 0),
        mask=flags(1, 1, 1),
        values=column(2, 1, 3, 2),
        discount=0.5,
    )
    torch.testing.assert_close(found.targets, column(2.625, 4.5, 5.0))
    torch.testing.assert_close(found.advantages, column(0.625, 3.5, 2.0))
    torch.testing.assert_close(found.ratios, column(0.5, 2.0, 1.0))


def test_truncation_bootstraps_with_the_final_observation_and_termination_with_nothing() -> None:
    # Step 0 ends an episode, step 1 begins the next one: the value 10 is of the final observation.
    truncated = EnvironmentSteps(
        reward=column(1, 77, 2),
        terminated=flags(0, 0, 0),
        mask=flags(1, 0, 1),
        values=column(0, 10, 0, 4),
        log_prob=column(0, 0, 0),
        behaviour_log_prob=column(0, 0, 0),
    )
    found = vtrace_of(truncated, discount=0.5).targets
    torch.testing.assert_close(found, column(1 + 0.5 * 10, 10, 2 + 0.5 * 4))
    found = vtrace_of(replace(truncated, terminated=flags(1, 0, 0)), discount=0.5).targets
    torch.testing.assert_close(found, column(1, 10, 2 + 0.5 * 4))


@pytest.mark.parametrize("seed", SEEDS)
def test_on_policy_with_lambda_1_it_is_the_return_of_all_steps(seed: int) -> None:
    steps = random_steps(seed)
    steps = replace(steps, behaviour_log_prob=steps.log_prob)
    returns = n_step_returns(
        reward=steps.reward,
        terminated=steps.terminated,
        mask=steps.mask,
        values=steps.values,
        discount=0.9,
        n=len(steps.reward),
    )
    torch.testing.assert_close(vtrace_of(steps, rho_bar=9.0, c_bar=9.0).targets, returns)


def test_with_rho_bar_0_the_targets_are_the_values() -> None:
    steps = random_steps(1)
    assert torch.equal(vtrace_of(steps, rho_bar=0.0).targets, steps.values[:-1])


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -1e30])
def test_masked_steps_change_nothing_whatever_is_in_them(garbage: float) -> None:
    steps = random_steps(2)
    assert not steps.mask.all()
    clean, dirty = vtrace_of(steps), vtrace_of(steps.with_garbage(garbage))
    assert torch.equal(clean.targets, dirty.targets)
    assert torch.equal(clean.advantages, dirty.advantages)
    assert torch.equal(clean.ratios, dirty.ratios)
    assert torch.equal(clean.targets[~steps.mask], steps.values[:-1][~steps.mask])
    assert not clean.advantages[~steps.mask].any()


def test_no_gradient_flows_through_targets() -> None:
    steps = random_steps(3)
    steps = replace(steps, values=steps.values.requires_grad_(), log_prob=steps.log_prob.requires_grad_())
    found = vtrace_of(steps)
    assert not found.targets.requires_grad
    assert not found.advantages.requires_grad


def test_bounds_with_which_it_need_not_converge_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rho_bar \(0.5\) must be at least c_bar \(1.0\)"):
        vtrace_of(random_steps(0), rho_bar=0.5)


def test_float32_stays_float32() -> None:
    steps = random_steps(4)
    single = EnvironmentSteps(
        **{name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in vars(steps).items()}
    )
    found = vtrace_of(single).targets
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), vtrace_of(steps).targets, rtol=1e-4, atol=1e-5)
