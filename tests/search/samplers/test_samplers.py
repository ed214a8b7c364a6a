"""The samplers by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ropewalk.errors import SearchInvalid
from ropewalk.search.samplers import SAMPLERS


def test_an_unknown_sampler_is_answered_with_the_near_one() -> None:
    with pytest.raises(SearchInvalid, match=r"no sampler 'radnom'; did you mean 'random'\? There are random, grid"):
        SAMPLERS.make("radnom", {})


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_optuna_and_scipy_are_imported_by_the_samplers_that_need_them_alone() -> None:
    found = run(
        "import sys; from ropewalk.search.space import SearchSpace; from ropewalk.search.samplers import SAMPLERS\n"
        "SAMPLERS.make('random', {}); SAMPLERS.make('grid', {}); print({'optuna', 'scipy'} & set(sys.modules))"
    )
    assert found.strip() == "set()"


def test_a_missing_package_is_named_with_what_installs_it() -> None:
    found = run(
        "import sys; sys.modules['optuna'] = None; from ropewalk.search.samplers import SAMPLERS\n"
        "try: SAMPLERS.make('tpe', {})\n"
        "except ValueError as error: print(type(error).__name__, error)"
    )
    assert "SearchInvalid" in found and "need optuna: pip install 'ropewalk[search]'" in found
