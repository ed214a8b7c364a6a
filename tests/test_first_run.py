"""`make test` on a machine where nobody has prepared anything, and started in whatever way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

#: One that a Ctrl-C has to reach, and those for which a `docker` or `kubectl` command alone is not enough.
NEEDS_INTERRUPTS = "tests/processes/test_interrupts.py"
NEEDS_PACKAGES = [
    *(f"tests/engines/test_docker{part}.py" for part in ("", "_container", "_faults", "_program", "_image")),
    "tests/engines/test_kubernetes_failures.py",
]


def as_with_nohup() -> None:
    """What `nohup make test &` in a script leaves to the processes that it starts."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def test_in_the_background_and_without_packages_of_engines_nothing_fails() -> None:
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "tests.without_packages", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*argv, NEEDS_INTERRUPTS, *NEEDS_PACKAGES],
        cwd=Path(__file__).parents[1],
        env={name: value for name, value in os.environ.items() if name != "CI"},  # there they are required
        preexec_fn=as_with_nohup,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"SKIPPED .*needs the package docker: pip install -e '.\[lab\]'", done.stdout), done.stdout
    match = re.search(r"(\d+) passed, (\d+) skipped", done.stdout)
    assert match and int(match[1]) > 20 and int(match[2]) > 100, "those that need a package, and no others"
