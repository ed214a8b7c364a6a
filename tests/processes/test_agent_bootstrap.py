"""What is said of an agent that did not come up."""

from __future__ import annotations

import subprocess
import sys

from ropewalk.processes.agent_bootstrap import remedy_for
from ropewalk.version import VERSION


def test_a_python_without_ropewalk_is_told_how_to_get_it() -> None:
    command = [sys.executable, "-S", "-I", "-m", "ropewalk.processes.agent_main"]  # without installed packages
    said = subprocess.run(command, capture_output=True, text=True).stderr
    assert f"pip install ropewalk=={VERSION}" in remedy_for(said) and "`python`" in remedy_for(said)
    assert remedy_for(said).startswith("That Python has no ropewalk: ")


def test_so_is_one_that_lacks_a_package_that_ropewalk_needs() -> None:
    assert remedy_for("ModuleNotFoundError: No module named 'msgspec'").startswith("That Python has no msgspec: ")
    assert remedy_for("OSError: No space left on device") == remedy_for("") == ""
