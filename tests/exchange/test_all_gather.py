"""`AllGather`: what members tell each other beside the gradients."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from ropewalk.exchange.all_gather import AllGather
from ropewalk.exchange.compressors import make_compressor
from ropewalk.exchange.exchange import StepRecord
from ropewalk.exchange.groups.thread_group import ThreadGroup, run_members

Gathered = list[tuple[memoryview, tuple[int, ...]]]


def calls(compressor: str, mode: str) -> list[str]:
    """The gathers of one step where every member has one sample, as under the hook of DDP."""

    def body(group: ThreadGroup) -> list[str]:
        made: list[str] = []
        gather = group.all_gather

        def counted(message: memoryview, facts: Sequence[int], tag: str) -> Gathered:
            made.append(tag)
            return gather(message, facts, tag)

        group.all_gather = counted
        exchange = AllGather(make_compressor(compressor), mode=mode)
        exchange.uniform = True
        exchange.bind([("a", torch.zeros(8))], group)
        exchange.begin(StepRecord(0))
        exchange.ready("a", torch.arange(8.0))
        exchange.finish()
        exchange.close()
        return made

    first, second = run_members(ThreadGroup.make(2), body)
    assert first == second
    return first


@pytest.mark.parametrize("compressor", ["none", "half", "top_k", "sign", "quantized"])
def test_a_transparent_compressor_costs_one_gather_per_bucket(compressor: str) -> None:
    assert calls(compressor, "sparse") == ["bucket 0"]


@pytest.mark.parametrize("compressor", ["random_k", "gd_sec"])
def test_one_that_keeps_state_or_hides_nan_has_members_agree(compressor: str) -> None:
    assert calls(compressor, "sparse") == ["step", "bucket 0", "not finite"]


def test_times_are_agreed_on_wherever_they_decide() -> None:
    assert calls("top_k", "auto")[0] == "step"
