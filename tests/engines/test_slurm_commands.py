"""A job that Slurm refuses is answered with what to do."""

from __future__ import annotations

import pytest

from ropewalk.engines.slurm_commands import SLURM


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("Batch job submission failed: Invalid account or account/partition combination specified", "option account"),
        ("Batch job submission failed: Invalid qos specification", "option qos"),
        ("Batch job submission failed: Requested node configuration is not available", "sinfo --Node --long"),
        (
            "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size)",
            "as many jobs",
        ),
        ("Batch job submission failed: Invalid job array specification", "MaxArraySize"),
        ("Batch job submission failed: Memory specification can not be satisfied", "less memory"),
    ],
)
def test_refusals_of_slurm_come_with_the_next_step(words: str, advice: str) -> None:
    said = SLURM.advise(f"sbatch: error: {words}")
    assert said.startswith(words.removeprefix("Batch job submission failed: "))
    assert advice in said
