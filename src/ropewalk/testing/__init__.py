"""For those who write engines, algorithms and test programs: conformance suites and fault injection.

from ropewalk.testing import faults
from ropewalk.testing.algorithm_conformance import AlgorithmConformance
from ropewalk.testing.engine_conformance import EngineConformance
"""
