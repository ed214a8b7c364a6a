"""Tools for testing engines, algorithms and programs: conformance suites, fault injection, problems for algorithms.

from ropewalk.testing import faults
from ropewalk.testing.algorithm_conformance import AlgorithmConformance
from ropewalk.testing.engine_conformance import EngineConformance
"""
