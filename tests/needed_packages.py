"""Skips a module of tests whose packages are not installed, without importing them.

`pytest.importorskip` imports what it looks for, in every worker and at once: scikit-learn, with pandas and scipy, takes
0.8 s of CPU time, for tests that start a process of their own, or are run by another worker.
"""

from __future__ import annotations

import importlib.util

import pytest


def needs(*packages: str) -> None:
    """Skip the module that calls this, unless these packages are there."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the package {package}: pip install 'ropewalk[test]'", allow_module_level=True)
