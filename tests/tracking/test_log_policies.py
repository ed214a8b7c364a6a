from __future__ import annotations

import pytest

from ropewalk.tracking.log_policies import LogFindings, LogPolicy, findings

POLICIES = [
    LogPolicy(r"CUDA error.*ECC", label="bad-gpu", exclude_host=True),
    LogPolicy(r"out of memory", label="oom", no_retry=True),
    LogPolicy(r"memory", label="oom"),
]


def test_lines_say_what_follows() -> None:
    lines = ["step 1", "CUDA error: uncorrectable ECC", "CUDA error: ECC again", "out of memory"]
    assert findings(POLICIES, lines) == LogFindings(
        labels=("bad-gpu", "oom"),
        no_retry=True,
        exclude_host=True,
        lines=((r"CUDA error.*ECC", lines[1]), ("out of memory", lines[3]), ("memory", lines[3])),
    )


def test_nothing_follows_from_other_lines() -> None:
    assert findings(POLICIES, ["step 1", "done"]) == LogFindings()


def test_a_policy_that_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a regular expression"):
        LogPolicy("(", label="x")
    with pytest.raises(ValueError, match="does nothing; give it label="):
        LogPolicy("x")
