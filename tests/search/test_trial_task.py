"""Tests of what a process needs to work on an attempt."""

from __future__ import annotations

import subprocess
import sys


def test_a_process_works_on_trials_without_the_packages_that_choose_and_store_them() -> None:
    modules = ["numpy", "sqlalchemy", "optuna", "torch", "ropewalk.program", "ropewalk.search.search"]
    code = f"import sys, ropewalk.search.trial_task; print([name for name in {modules} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
