"""`test._test_multiprocessing` of the interpreter that runs this, turned round: a module by which processes find it."""

from __future__ import annotations

import turning

turning.load("test._test_multiprocessing", globals())
