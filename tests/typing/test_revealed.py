"""A type checker knows what a handle becomes: pyright reads `revealed.py`, and says what its comments say."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

REVEALED = Path(__file__).with_name("revealed.py")
PROJECT = Path(__file__).parents[2]


@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="needs pyright: pip install 'ropewalk[dev]'")
def test_a_type_checker_says_what_the_comments_say() -> None:
    expected: dict[int, str] = {}
    for number, line in enumerate(REVEALED.read_text(encoding="utf-8").splitlines(), 1):
        code, separator, comment = line.partition("  # ")
        if separator and code.strip().startswith("reveal_type("):
            expected[number] = comment
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(REVEALED)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    said: dict[int, str] = {}
    for found in json.loads(done.stdout)["generalDiagnostics"]:
        revealed = re.fullmatch(r'Type of ".*" is "(.*)"', found["message"], re.DOTALL)
        said[found["range"]["start"]["line"] + 1] = revealed[1] if revealed else found["message"]
    assert said == expected
