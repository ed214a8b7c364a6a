"""A pool refuses functions that need more than its workers have, and packs what it sends in few bytes."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ropewalk.compat.requires import requires
from ropewalk.engines.resources import Resources
from ropewalk.pool.messages import CallKind
from ropewalk.pool.pool import Pool
from ropewalk.pool.results import PoolJob


@requires(cpus=2, memory="1Gi")
def double(number: int) -> int:
    return 2 * number


def closing_over(number: int) -> Any:
    @requires(cpus=2, memory="1Gi")
    def inner(other: int) -> int:
        return number * other

    return inner


@pytest.mark.parametrize("function", [double, closing_over(2), functools.partial(double)])
def test_a_function_that_needs_more_is_refused_with_both_and_what_to_do(function: Any) -> None:
    with Pool(1) as pool:
        for call in (pool.map, pool.imap, pool.map_async):
            with pytest.raises(ValueError, match=r"\(ropewalk\.requires\)") as caught:
                call(function, [1])
        with pytest.raises(ValueError, match=r"\(ropewalk\.requires\)"):
            pool.apply(function, (1,))
        assert "needs Resources(cpus=2, gpus=0, memory=1073741824)" in str(caught.value)
        assert "workers of this pool have Resources(cpus=1, gpus=0, memory=None)" in str(caught.value)
        assert "Pool(..., resources=ropewalk.Resources(cpus=2, gpus=0, memory=1073741824))" in str(caught.value)
        assert pool.map(abs, [-1]) == [1]


def test_what_to_do_keeps_what_the_workers_have_more_of() -> None:
    with Pool(1, resources=Resources(cpus=4)) as pool, pytest.raises(ValueError) as caught:
        pool.map(double, [1])
    assert str(caught.value).endswith("Pool(..., resources=ropewalk.Resources(cpus=4, gpus=0, memory=1073741824))")


def test_a_function_that_needs_no_more_is_called() -> None:
    with Pool(1, resources=Resources(cpus=2, memory="2Gi")) as pool:
        assert pool.map(double, [1, 2]) == [2, 4] and pool.map(closing_over(3), [1, 2]) == [3, 6]


def test_a_function_of_main_needs_the_same_where_it_arrives(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from ropewalk.compat.requires import requires, resources_of\n"
        "from ropewalk.pool.pool import Pool\n"
        "@requires(cpus=0.5)\n"
        "def simulate(): return resources_of(simulate).cpus\n"
        "if __name__ == '__main__':\n"
        "    with Pool(1) as pool: print(pool.apply(simulate))\n"
    )
    assert subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout == "0.5\n"


def test_a_part_of_a_range_needs_no_bytes_unless_its_numbers_are_too_large() -> None:
    large = 2**63
    with Pool(1) as pool:
        job = PoolJob()
        packer = pool._submitter._packer
        code = packer.code(abs)
        for items, span in [
            (range(100, 200)[::-3], (199, 99, -3)),
            (range(-large, 3 - large), (-large, 3 - large, 1)),
            (range(large, large + 3), None),
            (range(0, 1, large), None),
        ]:
            unit = packer.unit(job, code, items, 0, CallKind.ONE, 0, what="iterable", defined={})
            assert unit.count == len(items) and unit.content.span == span
            assert bool(unit.content.parts) == (span is None)
            assert pool.map(abs, items) == [abs(item) for item in items]
        pool._dispatcher.let_go(code)
