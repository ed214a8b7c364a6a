from __future__ import annotations

import torch

from ropewalk.rl.learners.metrics import MetricMeans


def test_means_are_over_steps() -> None:
    means = MetricMeans()
    means.add({"loss": torch.tensor(1.0), "norm": 2.0})
    means.add({"loss": torch.tensor(2.0), "norm": 5.0})
    assert means.means() == {"loss": 1.5, "norm": 3.5}


def test_without_a_step_there_are_no_metrics() -> None:
    assert MetricMeans().means() == {}
