"""For those who write engines and test programs: conformance suites and fault injection.

from ropewalk.testing import faults
from ropewalk.testing.engine_conformance import EngineConformance
"""
