"""The size of a pool follows from its arguments, the environment and the number of CPUs."""

from __future__ import annotations

from typing import Any

import pytest

import ropewalk as rw
from ropewalk.pool.pool_arguments import PoolSize
from ropewalk.pool.scaling import Elasticity


def started(processes: int | None, least: int | None, most: int | None, default: int = 4) -> tuple[int, int, int]:
    """The number of workers at the start, and the fewest and the most."""
    num, elasticity = PoolSize.of(processes, least, most, 10.0).start(default)
    return (num, elasticity.least, elasticity.most) if isinstance(elasticity, Elasticity) else (num, num, num)


@pytest.mark.parametrize(
    ("processes", "least", "most", "expected"),
    [
        (None, None, None, (4, 4, 4)),
        (3, None, None, (3, 3, 3)),
        (None, 2, None, (2, 2, 4)),
        (None, 6, None, (6, 6, 6)),
        (None, 0, 8, (0, 0, 8)),
        (None, None, 8, (1, 1, 8)),
        (2, None, 8, (2, 2, 8)),
        (2, 1, None, (2, 1, 2)),
    ],
)
def test_what_is_not_given_follows_from_the_rest(
    processes: int | None,
    least: int | None,
    most: int | None,
    expected: tuple[int, int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ROPEWALK_WORKERS", raising=False)
    assert started(processes, least, most) == expected


@pytest.mark.parametrize(("wish", "expected"), [("7", 7), ("0", 4), ("many", 4)])
def test_the_environment_sets_the_size_of_a_pool_that_names_none(
    wish: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROPEWALK_WORKERS", wish)
    assert started(None, None, None) == (expected,) * 3
    assert started(3, None, None) == (3, 3, 3)


@pytest.mark.parametrize(("processes", "least", "most"), [(None, -1, None), (2, 3, None), (4, None, 3), (None, 0, 0)])
def test_bounds_that_contradict_each_other_are_refused_with_their_values(
    processes: int | None, least: int | None, most: int | None
) -> None:
    with pytest.raises(ValueError, match=rf"min_processes={least}, processes={processes}, max_processes={most}|not"):
        PoolSize.of(processes, least, most, 10.0)


@pytest.mark.parametrize("resources", [{"cpus": 2}, {}, 2, "2"])
def test_resources_of_another_type_are_refused_before_anything_starts(resources: Any) -> None:
    with pytest.raises(TypeError, match=r"resources is of type \w+; give ropewalk\.Resources\(cpus=2, gpus=1\)"):
        rw.Pool(1, resources=resources)
