"""Members that would exchange other parameters are told so, all of them."""

import pytest
import torch

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.buckets import BucketEntry
from ropewalk.exchange.groups.thread_group import ThreadGroup, run_members
from ropewalk.exchange.same_parameters import require_same_parameters

BASE = [BucketEntry("a", (2, 3)), BucketEntry("b", (3,))]


def _refusals(*lists) -> list[str]:
    def member(group) -> str:
        try:
            require_same_parameters(group, lists[group.rank])
        except ExchangeInvalid as error:
            return str(error)
        return ""

    return run_members(ThreadGroup.make(len(lists)), member)


def test_the_same_parameters_pass() -> None:
    assert _refusals(BASE, list(BASE), list(BASE)) == ["", "", ""]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ([BASE[0]], "rank 1 lacks b, which rank 0 has"),
        ([*BASE, BucketEntry("c", ())], "rank 1 has c, which rank 0 lacks"),
        ([BASE[0], BucketEntry("b", (4,))], "rank 1 has b as float32 (4,) and not float32 (3,)"),
        ([BASE[0], BucketEntry("b", (3,), torch.float64)], "rank 1 has b as float64 (3,) and not float32 (3,)"),
        (BASE[::-1], "their order differs"),
    ],
)
def test_every_member_hears_what_differs(other, words) -> None:
    for said in _refusals(BASE, other):
        assert words in said
