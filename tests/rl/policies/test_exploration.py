from __future__ import annotations

import numpy as np
import pytest

from ropewalk.rl.policies.exploration import AnnealedEpsilon, EpsilonLadder
from ropewalk.rl.schedules import LinearSchedule


def test_all_environments_have_the_annealed_epsilon() -> None:
    exploration = AnnealedEpsilon(LinearSchedule(1.0, 0.1, until=0.5))
    assert exploration.epsilons(0.25, 3).tolist() == pytest.approx([0.55, 0.55, 0.55])
    assert exploration.epsilons(0.8, 2).tolist() == pytest.approx([0.1, 0.1])


def test_the_ladder_runs_over_the_environments_of_all_groups() -> None:
    rungs = [EpsilonLadder(group, 3).epsilons(0.7, 4) for group in range(3)]
    expected = [0.4 ** (1 + 7 * i / 11) for i in range(12)]
    np.testing.assert_allclose(np.concatenate(rungs), expected)
    assert rungs[0][0] == pytest.approx(0.4)
    assert rungs[2][3] == pytest.approx(0.4**8)


def test_a_single_environment_is_on_the_first_rung() -> None:
    assert EpsilonLadder().epsilons(0.0, 1).tolist() == pytest.approx([0.4])


def test_a_group_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="group 3 of 3: the number must be from 0 to 2"):
        EpsilonLadder(3, 3)
