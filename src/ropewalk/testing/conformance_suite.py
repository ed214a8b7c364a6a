"""What all conformance suites have: their tests as a suite of unittest, for those who have no pytest."""

from __future__ import annotations

import unittest


class ConformanceSuite:
    """Tests of one implementation, which a subclass names; pytest collects them as methods of that subclass."""

    @classmethod
    def all_tests(cls) -> unittest.TestSuite:
        """Return the suite for unittest, if pytest is not available."""
        names = [name for name in dir(cls) if name.startswith("test_")]
        return unittest.TestSuite(unittest.FunctionTestCase(getattr(cls(), name)) for name in names)


__all__ = ["ConformanceSuite"]
