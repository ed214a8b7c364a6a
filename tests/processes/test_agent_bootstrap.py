"""What is said of an agent that did not come up."""

from __future__ import annotations

import subprocess
import sys

from ropewalk.interpreters import OUR_PYTHON
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


def test_a_python_of_another_version_is_not_told_to_install_what_it_finds_but_cannot_import() -> None:
    """With the site-packages of the launcher in its path it lacks `msgspec._core`, built for another Python."""
    other = "import sys, runpy; sys.version_info = (3, 99, 1, 'final', 0); sys.modules['msgspec'] = None; "
    run_agent = "runpy.run_module('ropewalk.processes.agent_main', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", other + run_agent], capture_output=True, text=True)
    assert done.returncode == 1 and "import of msgspec halted" in done.stderr.splitlines()[-1], "Python's own words"
    remedy = remedy_for(done.stderr)
    assert remedy.startswith(f"That Python is 3.99, and the launcher runs {OUR_PYTHON}; ")
    assert "`python`" in remedy and "pip install" not in remedy
    missing = "No module named 'msgspec'"
    assert remedy_for(f"this interpreter is Python {OUR_PYTHON}\n{missing}") == remedy_for(missing)
    old = "Unknown option: -P\nusage: python3.10 [option] ... [-c cmd | -m mod | file | -] [arg] ..."
    assert remedy_for(old).startswith("That Python is older than 3.11, and the launcher runs ")
